"""What the commands of `atlas bench` share."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

from atlas import bench, models
from atlas.cli.console import console
from atlas.cli.train import setting
from atlas.data import Batch
from atlas.disk import write_atomic
from atlas.errors import UsageError
from atlas.terminal import Terminal
from atlas.training.precision import fastest
from atlas.training.run import checked_device

MODELS = ("cnn", "wrn-16-2")
GRAY = {"cnn", "cnn-small"}
"""Models that are measured on MNIST's shape; all others on CIFAR's."""

ModelNames = Annotated[
    list[str] | None, typer.Option(help="A model's name; again for more. Default: cnn and wrn-16-2.")
]
BatchSize = Annotated[int, typer.Option(min=2, help="Images a step.")]
Repeats = Annotated[int, typer.Option(min=1, help="How often each is timed.")]
Shape = Annotated[
    str | None, typer.Option(help="CxHxW; default: 1x28x28 for `cnn` and `cnn-small`, else 3x32x32.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write all times and the machine's facts to this file.")
]
MarkdownFile = Annotated[
    Path | None, typer.Option("--markdown", help="Put the tables into this file, between its markers.")
]
Part = Annotated[str, typer.Option(help="Of a file with several tables: the one of this name.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of training for our steps: `training.channels_last=true`. Again for more.",
    ),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help="As in `atlas train`: float32, craft, bfloat16, bfloat16-all or auto; --set goes before it."
    ),
]


def settings_of(given: list[str] | None, precision: str | None, device: str | None) -> dict[str, Any]:
    """By their dotted keys; a wrong one is refused."""
    short = {"precision": precision} if precision is not None else {}
    if precision == "auto":
        short = fastest(checked_device(device))
    found = {f"training.{key}": value for key, value in short.items()} | dict(map(setting, given or []))
    bench.training_with(2, found)
    return found


def shape_of(model: str, given: str | None) -> tuple[int, ...]:
    """The shape that was given, or the one that the model is measured on."""
    if given is None:
        return (1, 28, 28) if model in GRAY else (3, 32, 32)
    if not re.fullmatch(r"\d{1,4}x\d{1,4}x\d{1,4}", given):
        raise UsageError(f"--shape is {given!r}; wanted CHANNELSxHEIGHTxWIDTH, such as 3x32x32")
    return tuple(map(int, given.split("x")))


def made(name: str, size: int, shape: tuple[int, ...], device: str) -> tuple[Batch, nn.Module]:
    """A batch of noise, and the network that trains on it."""
    return bench.random_batch(size, shape, device), models.build(name, shape=shape).to(device)


def bar() -> Progress:
    """Turns done and the time left."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=Terminal(stderr=True))


def table_of(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], words: int = 0) -> Table:
    """A table whose first column and last `words` columns are text; in a narrow terminal these are cut."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        text = number >= len(headings) - words
        least = None if text else max(len(row[number]) for row in (headings, *rows))
        side = "left" if text or not number else "right"
        table.add_column(heading, justify=side, no_wrap=True, min_width=least)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    return table


def write(report: dict[str, Any], file: Path | None) -> None:
    """The whole report as JSON."""
    if file is not None:
        write_atomic(file, (json.dumps(report, indent=1) + "\n").encode())
        console.print(f"times written to {file}")


def put(text: str, file: Path | None, markers: tuple[str, str]) -> None:
    """The tables into a page."""
    if file is not None:
        bench.put_between_markers(file, text, *markers)
        console.print(f"tables written to {file}")
