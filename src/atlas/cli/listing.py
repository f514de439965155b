"""`atlas presets`, `models`, `methods` and `attacks`: what there is by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer import Argument

from atlas import presets as recipes
from atlas.attacks import ATTACKS, TRAINING_ATTACKS
from atlas.cli.console import console, say
from atlas.config import table_of
from atlas.methods import METHODS
from atlas.models import MODELS
from atlas.training.settings import REGISTRIES


def presets(
    name: Annotated[
        str | None, Argument(metavar="[PRESET_OR_FILE]", help="Print this one, every setting explained.")
    ] = None,
) -> None:
    """List the presets: one for each row of the paper's tables, CPU-sized ones, and two for any data.

    - `atlas presets finetune` : print one as a TOML file, with all that it extends and comments
    - `atlas presets finetune > mine.toml` : and start a configuration from it
    """
    if name is not None:
        print(recipes.explained(name), end="")
        return
    _print("preset", {each: recipes.description(each) for each in recipes.names()})
    say("Print one with `atlas presets NAME`, train it with `atlas train NAME`.")


def models() -> None:
    """List the models that have a name. Your own is `module.path:factory`."""
    _print("model", {name: entry.description for name, entry in MODELS.items()})


def _print(kind: str, texts: Mapping[str, str]) -> None:
    table = Table(kind, "what it is", box=None, pad_edge=False)
    for row in texts.items():
        table.add_row(*row)
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
    """The first line of each docstring, and all parameters with their defaults and choices."""
    for name, builder in registry.items():
        types, parameters = get_type_hints(builder), inspect.signature(builder).parameters
        settings = ", ".join(_setting(key, each.default, types[key]) for key, each in parameters.items())
        console.print(Text(name, style="bold"))
        for text, style in (((inspect.getdoc(builder) or "").partition("\n")[0], None), (settings, "dim")):
            if text:
                console.print(Padding(text, (0, 0, 0, 2), expand=False), style=style)


def _setting(key: str, default: Any, kind: Any) -> str:
    if default is inspect.Parameter.empty:
        return f"{key} (required)"
    if default is None:
        return f"{key} (not set)"
    if is_dataclass(default):
        return f"{key}={table_of(default, REGISTRIES)['name']}"
    others = [str(each) for each in get_args(kind) if each != default] if get_origin(kind) is Literal else []
    text = f"{key}={str(default).lower() if isinstance(default, bool) else default}"
    return f"{text} (or {', '.join(others)})" if others else text
