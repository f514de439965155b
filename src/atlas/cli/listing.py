"""`atlas presets`, `models`, `methods` and `attacks`: what there is by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from atlas import presets as recipes
from atlas.attacks import ATTACKS, TRAINING_ATTACKS
from atlas.cli.console import console, say
from atlas.config import table_of
from atlas.methods import METHODS
from atlas.models import MODELS
from atlas.training.settings import REGISTRIES

INDENT = 2


def presets(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[PRESET_OR_FILE]", help="Print this one, every setting explained."),
    ] = None,
) -> None:
    """List the presets: one for each row of the paper's tables, CPU-sized ones, and two for any data.

    - `atlas presets finetune` : print one as a TOML file, with all that it extends and comments
    - `atlas presets finetune > mine.toml` : and start a configuration from it
    """
    if name is not None:
        print(recipes.explained(name), end="")
        return
    table = Table("preset", "what it is", box=None, pad_edge=False)
    for each in recipes.names():
        table.add_row(each, recipes.description(each))
    console.print(table)
    say("Print one with `atlas presets NAME`, train it with `atlas train NAME`.")


def models() -> None:
    """List the models that have a name. Your own is `module.path:factory`."""
    table = Table("model", "what it is", box=None, pad_edge=False)
    for name, entry in MODELS.items():
        table.add_row(name, entry.description)
    console.print(table)


def methods() -> None:
    """List the training methods, their losses and their parameters."""
    say("x' is the image that an attack makes of x, CE the cross-entropy, J the Jacobian of the logits.")
    _describe(METHODS)
    say("Choose one with `--set method.name=NAME`, and set its parameters with `--set method.beta=2`.")


def attacks() -> None:
    """List the attacks and their parameters. Suites of them are listed by `atlas suites`."""
    _describe(ATTACKS)
    say(
        f"Training takes {' and '.join(TRAINING_ATTACKS)} (`--set method.attack.name=NAME`), validation and "
        "`atlas evaluate --attacks NAME` all of them."
    )


def _describe(registry: Mapping[str, Callable[..., object]]) -> None:
    for name, builder in registry.items():
        about = inspect.getdoc(builder) or ""
        console.print(Text(name, style="bold"))
        console.print(Padding(about.splitlines()[0], (0, 0, 0, INDENT), expand=False))
        if parameters := _parameters(builder):
            console.print(Padding(parameters, (0, 0, 0, INDENT), expand=False), style="dim")


def _parameters(builder: Callable[..., object]) -> str:
    """All of them with their defaults and choices."""
    types = get_type_hints(builder)
    return ", ".join(
        _parameter(key, parameter.default, types[key])
        for key, parameter in inspect.signature(builder).parameters.items()
    )


def _parameter(key: str, default: Any, kind: Any) -> str:
    if default is inspect.Parameter.empty:
        return f"{key} (required)"
    if default is None:
        return f"{key} (not set)"
    if is_dataclass(default):
        return f"{key}={table_of(default, REGISTRIES)['name']}"
    others = [str(each) for each in get_args(kind) if each != default] if get_origin(kind) is Literal else []
    return f"{key}={str(default).lower() if isinstance(default, bool) else default}" + (
        f" (or {', '.join(others)})" if others else ""
    )
