"""`atlas bench growth`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from atlas import bench
from atlas.bench.drawing import kind_of
from atlas.bench.growth import BATCHES, GROWN, WIDTHS, Growth, Point, grow, growths
from atlas.bench.growth_report import (
    GROWTH_MARKERS,
    draw_growth,
    growth_headings,
    growth_markdown,
    growth_rows,
    growth_summary,
    growth_words,
)
from atlas.bench.neighbour import neighbour
from atlas.cli.bench_tools import (
    Device,
    JsonFile,
    MarkdownFile,
    PrecisionOption,
    Repeats,
    SettingsOption,
    Shape,
    bar,
    put,
    settings_of,
    shape_of,
    table_of,
    write,
)
from atlas.cli.console import console
from atlas.training.run import checked_device


def growth(
    model: Annotated[str, typer.Option(help="The model whose batch grows.")] = "cnn",
    batch: Annotated[
        list[int] | None,
        typer.Option(min=2, help="A batch size, in rising order; again for more. Default: 16 to 1024."),
    ] = None,
    width: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A model, each wider than the last; again for more. Default: {', '.join(WIDTHS)}."
        ),
    ] = None,
    width_batch: Annotated[int, typer.Option(min=2, help="Images a step of the models that widen.")] = 16,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method and its attack steps; again for more. Default: adv-1 and atlas-1."),
    ] = None,
    repeats: Repeats = 5,
    shape: Shape = None,
    device: Device = "cpu",
    precision: PrecisionOption = None,
    settings: SettingsOption = None,
    json_file: JsonFile = None,
    markdown_file: MarkdownFile = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw it: a file that ends in .svg, .pdf or .png.")
    ] = None,
) -> None:
    """How the time of a step grows with the batch and with the width, alone and beside a busy process.

    Growth in proportion is an even time an image, and an even time a FLOP. Every step is timed twice in each
    repeat, one right after the other: with a second process that keeps one core busy, and without. How many
    threads torch uses (OMP_NUM_THREADS) decides what that costs.

    - `atlas bench growth --repeats 5 --figure growth.svg` : ten minutes on one core
    - `atlas bench growth --model cnn-small --batch 16 --batch 64 --width wrn-10-1 --repeats 1` : seconds
    """
    if markdown_file is not None:
        bench.check_markers(markdown_file, *GROWTH_MARKERS)
    if figure is not None:
        kind_of(figure)  # a wrong one is refused before anything is measured
    cases = [bench.case(label) for label in dict.fromkeys(method or GROWN)]
    axes = {
        "batch": [Point(model, shape_of(model, shape), size) for size in batch or BATCHES],
        "width": [Point(name, shape_of(name, shape), width_batch) for name in width or WIDTHS],
    }
    chosen = settings_of(settings, precision, device)
    report: dict[str, Any] = {"machine": bench.machine(checked_device(device)), "repeats": repeats}
    report |= {"settings": chosen, "axes": {}}
    todo = {axis: growths(points, cases) for axis, points in axes.items()}
    for axis, found in todo.items():
        _measure(axis, found, repeats, device, chosen)
        report["axes"][axis] = growth_summary(found)
    console.print(bench.facts(report))
    for axis, records in report["axes"].items():
        console.print("", table_of(axis, growth_headings(axis), growth_rows(axis, records)))
        for line in growth_words(axis, records):
            console.print(line)
    write(report, json_file)
    put(growth_markdown(report), markdown_file, GROWTH_MARKERS)
    if figure is not None:
        draw_growth(report, figure)
        console.print(f"drawn in {figure}")


def _measure(axis: str, found: list[Growth], repeats: int, device: str, settings: bench.Settings) -> None:
    with neighbour() as beside, bar() as progress:
        task = progress.add_task(axis, total=len(found) * (repeats + bench.WARM_UP))
        grow(found, repeats, beside, device, settings=settings, each=lambda: progress.advance(task))
