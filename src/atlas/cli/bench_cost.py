"""`atlas bench cost`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atlas import bench
from atlas.bench.cluster import Link
from atlas.bench.cost_figure import draw_cost
from atlas.bench.cost_report import (
    COST_MARKERS,
    COST_METHODS,
    GIGABIT,
    LIMIT_HEADINGS,
    TASKS,
    Site,
    Task,
    cost_facts,
    cost_headings,
    cost_markdown,
    cost_report,
    cost_rows,
    limit_rows,
    task_title,
)
from atlas.bench.drawing import kind_of
from atlas.cli.bench_tools import BatchSize, JsonFile, MarkdownFile, Shape, put, shape_of, table_of, write
from atlas.cli.console import console
from atlas.errors import UsageError

LINKS = (10.0, 100.0, 400.0)


def cost(
    model: Annotated[
        str | None,
        typer.Option(
            help="A model's name. Default: WRN-28-8 on CIFAR-10 and WRN-50-2 on ImageNet, whatever the other "
            "options of the task are."
        ),
    ] = None,
    shape: Shape = None,
    classes: Annotated[int, typer.Option(min=2, help="Of the model's task.")] = 10,
    images: Annotated[int, typer.Option(min=2, help="Of an epoch.")] = 50_000,
    batch: BatchSize = 128,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A method and its attack steps; again for more. Default: adv-1, atlas-1 and adv-10."
        ),
    ] = None,
    ranks: Annotated[int, typer.Option(min=2, help="How many share each batch.")] = 8,
    speed: Annotated[float, typer.Option(min=1e-6, help="TFLOP/s that each of them achieves.")] = 50.0,
    bandwidth: Annotated[
        list[float] | None,
        typer.Option(min=1e-6, help="Gbit/s between two of them; again for more. Default: 10, 100 and 400."),
    ] = None,
    latency: Annotated[float, typer.Option(min=0, help="Microseconds from one to the next.")] = 20.0,
    json_file: JsonFile = None,
    markdown_file: MarkdownFile = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw computing and sending by ranks into this .svg, .pdf or .png.")
    ] = None,
) -> None:
    """What training costs on paper: FLOPs, memory, bytes sent, and where the network becomes the limit.

    Passes are counted without computing them, for any model at any size. Speed, bandwidth and latency are
    what you believe of your machines; `atlas bench step` and `atlas bench scale` measure them.

    - `atlas bench cost`
    - `atlas bench cost --model preact-resnet18 --shape 3x64x64 --classes 200 --images 100000 --ranks 4`
    - `atlas bench cost --model my.module:network --speed 20 --bandwidth 25 --figure cost.svg`
    """
    if markdown_file is not None:
        bench.check_markers(markdown_file, *COST_MARKERS)
    if figure is not None:
        kind_of(figure)
    own = [Task("yours", model, shape_of(model, shape), classes, images, batch)] if model else TASKS
    if small := [task.batch for task in own if task.batch < 2 * ranks]:
        raise UsageError(
            f"--ranks is {ranks} for batches of {small[0]}; wanted 2 images or more for each rank"
        )
    links = [Link(each * GIGABIT, latency * 1e-6) for each in bandwidth or LINKS]
    cases = [bench.case(label) for label in method or COST_METHODS]
    report = cost_report(own, cases, Site(ranks, speed * 1e12, links))
    console.print(cost_facts(report))
    for task in report["tasks"]:
        console.print(f"\n{task_title(task)}", style="bold")
        console.print(table_of("", cost_headings(report), cost_rows(task, report)))
        console.print(table_of("", LIMIT_HEADINGS, limit_rows(task)))
    write(report, json_file)
    put(cost_markdown(report), markdown_file, COST_MARKERS)
    if figure is not None:
        draw_cost(report, figure)
        console.print(f"figure written to {figure}")
