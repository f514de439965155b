"""`atlas bench`: what things cost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from atlas import bench, models
from atlas.cli.bench_attack import attack
from atlas.cli.console import console
from atlas.disk import write_atomic
from atlas.errors import UsageError
from atlas.terminal import Terminal

MODELS = ("cnn", "wrn-16-2")
GRAY = {"cnn", "cnn-small"}
"""Models that are measured on MNIST's shape; all others on CIFAR's."""

app = typer.Typer(no_args_is_help=True, help="What training and attacks cost, as ratios measured in one run.")


@app.callback()
def about() -> None:
    """What training and attacks cost, as ratios measured in one run."""


app.command()(attack)


@app.command()
def step(
    model: Annotated[
        list[str] | None, typer.Option(help="A model's name; again for more. Default: cnn and wrn-16-2.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method and its attack steps, such as `atlas-10`; again for more. Default: all."),
    ] = None,
    batch: Annotated[int, typer.Option(min=2, help="Images a step.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="How often each is timed.")] = 20,
    shape: Annotated[
        str | None, typer.Option(help="CxHxW; default: 1x28x28 for `cnn` and `cnn-small`, else 3x32x32.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")] = "cpu",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all times and the machine's facts to this file.")
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Put the tables into this file, between its markers.")
    ] = None,
) -> None:
    """The time of a whole training step over that of the bare passes that its equation needs.

    Each repeat times both, side by side, for every method; a ratio is the median of the repeats' ratios. The
    last columns are the FLOPs bound in forward passes, and that bound over the one of `adv-1`.

    - `atlas bench step`
    - `atlas bench step --model cnn-small --method adv-1 --method atlas-1 --repeats 100`
    - `atlas bench step --model my.module:network --shape 3x64x64 --device cuda --json speed.json`
    """
    # The reference of the ratios is always measured.
    chosen = [bench.case(label) for label in (*(method or bench.MEASURED), bench.REFERENCE)]
    cases = list({case.label: case for case in chosen}.values())
    if markdown_file is not None:
        bench.check_markers(markdown_file)
    report: dict[str, Any] = {"machine": bench.machine(device), "batch": batch, "repeats": repeats}
    report["models"] = [
        _measured(name, cases, batch, repeats, _shape(name, shape), device) for name in model or MODELS
    ]
    console.print(bench.facts(report), highlight=False)
    for measured in report["models"]:
        console.print(_table(measured))
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(json_file, (json.dumps(report, indent=1) + "\n").encode())
        console.print(f"times written to {json_file}", highlight=False)
    if markdown_file is not None:
        bench.put_between_markers(markdown_file, bench.markdown(report))
        console.print(f"tables written to {markdown_file}", highlight=False)


def _shape(model: str, given: str | None) -> tuple[int, ...]:
    if given is None:
        return (1, 28, 28) if model in GRAY else (3, 32, 32)
    if not re.fullmatch(r"\d{1,4}x\d{1,4}x\d{1,4}", given):
        raise UsageError(f"--shape is {given!r}; wanted CHANNELSxHEIGHTxWIDTH, such as 3x32x32")
    return tuple(map(int, given.split("x")))


def _measured(
    name: str, cases: list[bench.Case], size: int, repeats: int, shape: tuple[int, ...], device: str
) -> dict[str, Any]:
    """The measurements of one model, under a bar with the time left."""
    batch = bench.random_batch(size, shape, device)
    network = models.build(name, shape=shape).to(device)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=Terminal(stderr=True)) as bar:
        task = bar.add_task(name, total=len(cases) * (repeats + bench.WARM_UP))
        timings = bench.measure(network, cases, batch, repeats, each=lambda: bar.advance(task))
    parameters = models.count_parameters(network)
    return {"model": name, "shape": shape, "parameters": parameters, "methods": bench.summary(timings)}


def _table(measured: dict[str, Any]) -> Table:
    title = f"{measured['model']}, {measured['parameters']:,} weights"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for number, heading in enumerate(bench.HEADINGS):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in bench.rows(measured["methods"]):
        table.add_row(*row)
    return table
