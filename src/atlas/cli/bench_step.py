"""`atlas bench step`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from atlas import bench, models
from atlas.cli.bench_tools import (
    MODELS,
    BatchSize,
    Device,
    JsonFile,
    MarkdownFile,
    ModelNames,
    Repeats,
    Shape,
    bar,
    put,
    shape_of,
    table_of,
    write,
)
from atlas.cli.console import console


def step(
    model: ModelNames = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method and its attack steps, such as `atlas-10`; again for more. Default: all."),
    ] = None,
    batch: BatchSize = 128,
    repeats: Repeats = 20,
    shape: Shape = None,
    device: Device = "cpu",
    json_file: JsonFile = None,
    markdown_file: MarkdownFile = None,
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
        _measured(name, cases, batch, repeats, shape_of(name, shape), device) for name in model or MODELS
    ]
    console.print(bench.facts(report), highlight=False)
    for found in report["models"]:
        title = f"{found['model']}, {found['parameters']:,} weights"
        console.print(table_of(title, bench.HEADINGS, bench.rows(found["methods"])))
    write(report, json_file)
    put(bench.markdown(report), markdown_file, bench.markers("step"))


def _measured(
    name: str, cases: list[bench.Case], size: int, repeats: int, shape: tuple[int, ...], device: str
) -> dict[str, Any]:
    """The measurements of one model, under a bar with the time left."""
    batch = bench.random_batch(size, shape, device)
    network = models.build(name, shape=shape).to(device)
    with bar() as progress:
        task = progress.add_task(name, total=len(cases) * (repeats + bench.WARM_UP))
        timings = bench.measure(network, cases, batch, repeats, each=lambda: progress.advance(task))
    parameters = models.count_parameters(network)
    return {"model": name, "shape": shape, "parameters": parameters, "methods": bench.summary(timings)}
