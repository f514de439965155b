"""`python -m benchmarks COMMAND`: parse, measure, print, write; and the options that commands share.

A command is a module with `add_options(parser)`, `run(options)`, which returns the report as plain data,
`blocks(report)`, which makes a page of it, and `draw(report)` if it has a figure.
"""

from __future__ import annotations

import re
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import Any

from atlas.cli.console import console, errors_to_exit_codes
from atlas.cli.train import setting
from atlas.distributed.launch import checked_device
from atlas.errors import choose
from atlas.files import write_atomic
from atlas.reports import plots
from atlas.training.precision import fastest
from benchmarks.tables import check_markers, markdown, markers_of, put_between_markers, save, show

COMMANDS = {
    **{"step": "step", "peers": "compare_steps", "attack": "attack", "scale": "scale", "growth": "growth"},
    "time": "time_to_accuracy",
}
"""The module of each command."""
ON_MNIST = {"cnn", "cnn-small"}
"""Models that are measured on images of MNIST's shape; all others on CIFAR's."""


class Repeated(Action):
    """An option that may be given several times; its first use replaces the default."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, value: Any, option: Any = None) -> None:
        given = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [value] if given is self.default else [*given, value])


def at_least(least: float, kind: Callable[[str], Any] = int) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        value = kind(text)
        if not value >= least:
            raise ArgumentTypeError(f"must be >= {least}, got {text}")
        return value

    return number


def shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,4}x\d{1,4}x\d{1,4}", text):
        raise ArgumentTypeError(f"must be CHANNELSxHEIGHTxWIDTH such as 3x32x32, got {text!r}")
    return tuple(map(int, text.split("x")))


SHARED: dict[str, dict[str, Any]] = {
    "model": {"action": Repeated, "help": "a model's name; repeatable"},
    "method": {"action": Repeated, "help": "a method and its attack steps, such as atlas-10; repeatable"},
    "batch": {"type": at_least(2), "help": "images per step"},
    "repeats": {"type": at_least(1), "help": "how often each is timed"},
    "shape": {
        "type": shape,
        "metavar": "CxHxW",
        "help": "of the images (default: 1x28x28 for cnn and cnn-small, else 3x32x32)",
    },
    "device": {"help": "cpu, cuda, cuda:1 ..."},
    "root": {"type": Path, "help": "where the data sets are (default: $ATLAS_DATA, else ~/.cache/atlas)"},
    "precision": {"help": "as in `atlas train`: float32, craft, bfloat16, bfloat16-all or auto"},
    "set": {
        "action": Repeated,
        "metavar": "KEY=VALUE",
        "help": "a setting of training (training.channels_last=true); repeatable, overrides --precision",
    },
    "json": {"type": Path, "metavar": "FILE", "help": "write all times and the machine's facts there"},
    "markdown": {"type": Path, "metavar": "FILE", "help": "put the tables there, between its markers"},
    "part": {"metavar": "NAME", "help": "of a file with several tables: the one of this name"},
    "figure": {"type": Path, "metavar": "FILE", "help": "draw the result: .svg, .pdf or .png"},
}


def add_shared(parser: ArgumentParser, **defaults: Any) -> None:
    """Add these options with these defaults."""
    for name, default in defaults.items():
        about = dict(SHARED[name])
        if default not in (None, "", ()):
            shown = " ".join(default) if isinstance(default, tuple) else default
            about["help"] += f" (default: {shown})"
        parser.add_argument(f"--{name}", default=default, **about)


def shape_of(model: str, given: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape that was given, or the one that the model is measured on."""
    return given or ((1, 28, 28) if model in ON_MNIST else (3, 32, 32))


def settings_of(options: Namespace) -> dict[str, Any]:
    """The settings of --precision and --set, by their dotted keys."""
    short = {} if options.precision is None else {"precision": options.precision}
    if options.precision == "auto":
        short = fastest(checked_device(options.device))
    return {f"training.{key}": value for key, value in short.items()} | dict(map(setting, options.set))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(
        prog="python -m benchmarks",
        description="Speed and cost of training steps and attacks, as ratios measured within one run.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = {name: import_module(f"benchmarks.{module}") for name, module in COMMANDS.items()}
    for name, module in modules.items():
        about = module.__doc__ or ""
        add_command(commands.add_parser(name, help=about.partition("\n")[0], **described(about)), module)
    options = parser.parse_args(arguments)
    execute(f"benchmarks {options.command}", modules[options.command], options)


def described(text: str) -> dict[str, Any]:
    """A module's docstring as a parser's description: paragraphs of 78 columns, examples as they are."""
    parts = [part if part.startswith("  ") else fill(part, 78) for part in text.split("\n\n")]
    return {"description": "\n\n".join(parts), "formatter_class": RawDescriptionHelpFormatter}


def add_command(parser: ArgumentParser, module: ModuleType) -> None:
    module.add_options(parser)
    add_shared(parser, json=None, markdown=None, part="")
    if hasattr(module, "draw"):
        add_shared(parser, figure=None)


def execute(name: str, module: ModuleType, options: Namespace) -> None:
    """Run a command; errors end the process with their exit codes."""
    with errors_to_exit_codes():
        markers = markers_of(f"{name} {options.part}".strip())
        figure: Path | None = getattr(options, "figure", None)
        if options.markdown:
            check_markers(options.markdown, *markers)
        kind = figure and choose("figure format", figure.suffix[1:], {kind: kind for kind in plots.FORMATS})
        report = module.run(options)
        if report is None:  # one of several processes, of which another reports
            return
        show(module.blocks(report), console)
        if options.json:
            save(report, options.json)
            console.print(f"times written to {options.json}")
        if options.markdown:
            put_between_markers(options.markdown, markdown(module.blocks(report)), *markers)
            console.print(f"tables written to {options.markdown}")
        if figure and kind:
            with plots.style():
                write_atomic(figure, plots.rendered(module.draw(report), kind))
            console.print(f"figure written to {figure}")
