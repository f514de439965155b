"""The parts of the site that are written when it is built: the reference from the code, tables from results/.

    ```{generated} cli
    ```

puts in what `PARTS["cli"]` returns, as Markdown; `results NAME` one of `scripts.result_tables`.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, is_dataclass
from itertools import pairwise
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

import atlas
from atlas import errors, presets
from atlas.attacks import ATTACKS, suites
from atlas.cli.app import app
from atlas.cli.evaluate import INVALID
from atlas.config import table_of
from atlas.evaluation.flags import MEANINGS
from atlas.methods import METHODS
from atlas.models import MODELS
from atlas.presets.template import COMMENTS, PARAMETERS, SECTIONS
from atlas.threat import THREATS
from atlas.training.settings import REGISTRIES
from benchmarks.tables import grid
from scripts.result_tables import TABLES

OTHER_PARAMETERS = {
    "training": "how it is trained",
    "optimizer": "steepest steps, or Adam",
    "targets": "how many of the likeliest wrong classes are tried",
    "far": "distance of the start, in units of eps",
    "queries": "queries per image",
    "p": "share of the image that the first square covers",
    "loss": "what is maximised",
    "alpha_max": "most weight of the step towards the image",
    "TargetedFAB.beta": "how far a point goes back towards the image",
    "eta": "how far a step overshoots the boundary",
}
"""What parameters of methods and attacks are, that `PARAMETERS` does not have."""
Part = Callable[[], str]


def api() -> str:
    """Every name of `atlas.__all__`, by autodoc; of a module all that it exports."""
    names = [name for name in atlas.__all__ if not name.startswith("__")]
    modules = [name for name in names if inspect.ismodule(getattr(atlas, name))]
    blocks = ["## atlas"]
    for name in (name for name in names if name not in modules):
        kind = "class" if inspect.isclass(getattr(atlas, name)) else "function"
        blocks.append(_rst(f".. auto{kind}:: atlas.{name}", ":members:" * (kind == "class")))
    for name in modules:
        module = getattr(atlas, name)
        own = [key for key, thing in vars(module).items() if getattr(thing, "exit_code", None)]  # the errors
        members = ", ".join(key for key in getattr(module, "__all__", own) if key not in names)
        blocks += [f"## atlas.{name}", _rst(f".. automodule:: atlas.{name}", f":members: {members}")]
    return "\n\n".join(blocks)


def _rst(directive: str, *options: str) -> str:
    lines = [directive, *(f"   {option}" for option in options if option)]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def as_rst(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Norms and products in docstrings are text, not markup: |x| and a * b, outside of code."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith(">>>"):
            parts = line.split("`")
            parts[::2] = [re.sub(r"([|*]|_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
            lines[number] = "`".join(parts)


def cli() -> str:
    """Every command of the typer app, with its arguments, options and defaults."""
    return "\n\n".join(_command(typer.main.get_command(app), "atlas"))


def _command(command: Any, path: str) -> Iterator[str]:
    yield f"## {path}"
    yield inspect.cleandoc(command.help or "")
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [_metavar(each) for each in shown if not _flags(each)]
    yield f"```text\n{' '.join([path, '[OPTIONS]', *arguments])}\n```"
    if shown:
        yield grid(["option", "default", "meaning"], list(map(_option, shown)))
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _command(below, f"{path} {name}")


def _flags(option: Any) -> list[str]:
    """None of an argument."""
    return [name for name in option.opts if name.startswith("-")]


def _option(option: Any) -> list[str]:
    value = "" if getattr(option, "is_flag", False) else _metavar(option)
    default = "" if option.default in (None, False, ()) else f"`{option.default}`"
    return [f"`{' '.join([', '.join(_flags(option)), value]).strip()}`", default, _cell(option.help or "")]


def _metavar(option: Any) -> str:
    kind = option.type_descriptor.annotation
    choices = "|".join(get_args(kind)) if get_origin(kind) is Literal else getattr(kind, "__name__", "text")
    return str(option.metavar or {"str": "TEXT", "list": "TEXT"}.get(choices, choices).upper())


def configuration() -> str:
    """Every key of a configuration, from the dataclasses that it builds."""
    blocks = []
    for section, kind in SECTIONS.items():
        if kind is not None:
            title = f"## `[{section}]`" if section else "## At the top"
            blocks += [title, COMMENTS.get(section, ""), _keys(kind, section)]
    for title, registry, section in (
        ("Threats: `[threat]`", THREATS, "threat"),
        ("Methods: `[method]`", METHODS, "method"),
        ("Attacks: `[method.attack]` and `[training.validation.attack]`", ATTACKS, ""),
    ):
        blocks.append(f"## {title}")
        for name, builder in registry.items():
            blocks += [f'### `name = "{name}"`', _about(builder), _keys(builder, section)]
    return "\n\n".join(filter(None, blocks))


def _about(builder: Callable[..., object]) -> str:
    return _cell((inspect.getdoc(builder) or "").partition("\n\n")[0])


def _keys(builder: Callable[..., Any], section: str) -> str:
    """Key, type, default and meaning of each parameter, as a table."""
    types_of, rows = get_type_hints(builder), []
    for key, parameter in inspect.signature(builder).parameters.items():
        path = f"{section}.{key}" if section else key
        cells = [_type(types_of[key]), _default(parameter.default), _meaning(builder, key, path)]
        rows.append([f"`{path}`", *map(_cell, cells)])
    return grid(["key", "type", "default", "meaning"], rows) if rows else ""


def _meaning(builder: Callable[..., Any], key: str, path: str) -> str:
    """What a key is: from the class, a function's result or their bases, else from the list of comments."""
    kind = builder if inspect.isclass(builder) else get_type_hints(builder)["return"]
    found: dict[str, str] = {}
    for each in [*reversed(inspect.getmro(kind)), builder]:
        found |= _arguments(each) | _attributes(each)
    names = (
        OTHER_PARAMETERS.get(f"{builder.__name__}.{key}"),
        PARAMETERS.get(key),
        OTHER_PARAMETERS.get(key),
    )
    meaning = found.get(key) or COMMENTS.get(path) or next(filter(None, names), None)
    if meaning is None:
        raise ExtensionError(f"{builder.__name__}.{key} has no meaning: add a string below the field")
    return meaning


def _arguments(builder: Callable[..., object]) -> Mapping[str, str]:
    """What the docstring says of each argument."""
    _, _, below = (inspect.cleandoc(builder.__doc__ or "")).partition("Args:\n")
    body = textwrap.dedent(below.partition("\n\n")[0])
    entries = re.findall(r"^(\w+): (.*(?:\n +.*)*)", body, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _attributes(kind: Callable[..., object]) -> Mapping[str, str]:
    """The strings below the fields of a dataclass."""
    if not (inspect.isclass(kind) and is_dataclass(kind)):
        return {}
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    return {
        field.target.id: " ".join(ast.literal_eval(text.value).split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def _type(kind: Any) -> str:
    """A type in words, as a configuration has it."""
    simple = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "not set"}
    if kind in simple:
        return simple[kind]
    if get_origin(kind) is Literal:
        return " or ".join(f"`{each!r}`".replace("'", '"') for each in get_args(kind))
    if get_origin(kind) is tuple:
        return "list of numbers"
    if get_args(kind):
        return " or ".join(_type(each) for each in get_args(kind) if each is not type(None))
    return "table"


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or value is MISSING:
        return "not set"
    if is_dataclass(value):
        table = table_of(value, REGISTRIES)
        return f"`{table['name']}`" if "name" in table else "see below"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{list(value) if value == () else value}`"


def listing(registry: Mapping[str, Any], head: str, about: Callable[[Any], str]) -> str:
    return grid([head, "what it is"], [[f"`{name}`", _cell(about(each))] for name, each in registry.items()])


def all_presets() -> str:
    return listing({name: presets.description(name) for name in presets.names()}, "preset", str)


def all_suites() -> str:
    blocks = []
    for name in suites.names():
        suite = suites.suite(name)
        rows = [[label, _cell(_settings(table))] for label, table in suite.attacks.items()]
        chained = " Each attack runs on what those before it have left." if suite.cascade else ""
        blocks += [f"## {name}", suite.description + chained, grid(["attack", "settings"], rows)]
    return "\n\n".join(blocks)


def _settings(table: Mapping[str, Any]) -> str:
    plain = {k: f"({_settings(v)})" if isinstance(v, dict) else v for k, v in table.items() if k != "name"}
    return ", ".join(
        [*([f"`{table['name']}`"] if "name" in table else []), *(f"{k} {v}" for k, v in plain.items())]
    )


def exit_codes() -> str:
    """From the errors, each of which has its code."""
    about = {0: "done", INVALID: "The evaluation is invalid: a fatal warning was raised."}
    for error in [errors.AtlasError, *errors.AtlasError.__subclasses__()]:
        if error is not errors.Interrupted:
            about.setdefault(error.exit_code, (inspect.getdoc(error) or "").partition("\n")[0])
    rows = [[f"`{code}`", text] for code, text in sorted(about.items())]
    return grid(["code", "meaning"], [*rows, ["`128 + N`", "Stopped by signal N; everything is saved."]])


def _cell(text: str) -> str:
    """Text for a cell of a table."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


PARTS: dict[str, Part] = {
    "api": api,
    "cli": cli,
    "configuration": configuration,
    "presets": all_presets,
    "suites": all_suites,
    "warnings": lambda: listing(MEANINGS, "warning", str),
    "models": lambda: listing(MODELS, "model", lambda entry: entry.description),
    "exit-codes": exit_codes,
}
"""What each part is written by."""


class Generated(SphinxDirective):
    """Put a part in."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        kind, _, name = self.arguments[0].partition(" ")
        text = TABLES[name]() if kind == "results" else PARTS[kind]()
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("generated", Generated)
    app.connect("autodoc-process-docstring", as_rst, priority=100)  # before napoleon
    return {"parallel_read_safe": True}
