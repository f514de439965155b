"""`atlas bench scale`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any

import typer

from atlas import bench, models
from atlas.bench.cost import Sizes, growing
from atlas.bench.elsewhere import Elsewhere
from atlas.bench.scale import measure_link, measure_scaling
from atlas.bench.scale_report import (
    LINK_HEADINGS,
    SCALE_MARKERS,
    SIMULATED_HEADINGS,
    elsewhere_note,
    link_facts,
    link_rows,
    link_summary,
    scale_headings,
    scale_markdown,
    scale_rows,
    scale_summary,
    simulated_rows,
)
from atlas.bench.step import CLASSES
from atlas.cli.bench_tools import (
    BatchSize,
    JsonFile,
    MarkdownFile,
    Repeats,
    Shape,
    bar,
    put,
    shape_of,
    table_of,
    write,
)
from atlas.cli.console import console
from atlas.errors import UsageError
from atlas.training import Ranks, connected
from atlas.training.contact import size, started
from atlas.training.launch import launch

MODELS = ("cnn-small", "cnn", "wrn-10-1")
METHODS = ("adv-1", "atlas-1")
LINK_ROUNDS = 3
"""A message is short beside a step, and its time spreads more."""


def scale(
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model's name; again for more. Default: cnn-small, cnn and wrn-10-1."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method and its attack steps; again for more. Default: adv-1 and atlas-1."),
    ] = None,
    batch: BatchSize = 128,
    processes: Annotated[int, typer.Option(min=2, help="How many share each batch.")] = 2,
    threads: Annotated[int, typer.Option(min=1, help="Of each process.")] = 1,
    repeats: Repeats = 10,
    shape: Shape = None,
    json_file: JsonFile = None,
    markdown_file: MarkdownFile = None,
) -> None:
    """The throughput of several processes over that of one, on this machine's CPU.

    The same step is made by one process, by one with the threads of all, and by all together, in turns; a
    ratio is the median of the repeats' ratios. A link is fitted to the times of means of gradients of many
    sizes, and the step that the simulation of `atlas bench cost` foretells is put beside the measured one.

    - `atlas bench scale`
    - `atlas bench scale --processes 4 --threads 2 --model wrn-16-2 --batch 256 --json scale.json`
    """
    of = size() if started() else processes
    if of < 2 or batch < 2 * of:
        raise UsageError(f"{of} processes for batches of {batch}; wanted 2 or more, with 2 images each")
    cases = [bench.case(label) for label in method or METHODS]
    if markdown_file is not None:
        bench.check_markers(markdown_file, *SCALE_MARKERS)
    if not started():
        for name in model or MODELS:
            models.build(name, CLASSES, shape_of(name, shape), device="meta")  # a wrong one is refused here
        raise typer.Exit(launch(sys.argv[1:], processes))
    report: dict[str, Any] = {"machine": bench.machine(), "batch": batch, "repeats": repeats}
    report |= {"processes": of, "threads": threads}
    with connected() as ranks:
        elsewhere = Elsewhere(ranks)
        times = measure_link(ranks, LINK_ROUNDS * repeats, threads)
        report["link"] = {**link_summary(times, of), "elsewhere": elsewhere.share()}
        report["models"] = [
            _measured(name, shape_of(name, shape), cases, report, ranks) for name in model or MODELS
        ]
        first = ranks.first
    if first:
        _print(report)
        write(report, json_file)
        put(scale_markdown(report), markdown_file, SCALE_MARKERS)


def _measured(
    name: str, shape: tuple[int, ...], cases: list[bench.Case], report: dict[str, Any], ranks: Ranks
) -> dict[str, Any]:
    """The measurements of one model; the first rank shows a bar with the time left."""
    make = partial(models.build, name, CLASSES, shape)
    batch, repeats, elsewhere = report["batch"], report["repeats"], Elsewhere(ranks)
    with bar() if ranks.first else nullcontext() as progress:
        if progress is not None:
            progress.add_task(name, total=len(cases) * (repeats + bench.WARM_UP))
        found = measure_scaling(
            make, cases, batch, shape, repeats, ranks, report["threads"],
            each=lambda: progress.advance(progress.task_ids[0]) if progress else None,
        )  # fmt: skip
    busy = elsewhere.share()
    sizes = Sizes.of(make(device="meta"))
    methods = [
        scale_summary(s, growing(name, s.case, shape, CLASSES).of(batch), sizes, report) for s in found
    ]
    about = {"model": name, "shape": shape, "parameters": sizes.parameters, "elsewhere": busy}
    return {**about, "methods": methods}


def _print(report: dict[str, Any]) -> None:
    console.print(bench.facts(report))
    for found in report["models"]:
        title = f"{found['model']}, {found['parameters']:,} weights{elsewhere_note(found)}"
        console.print(table_of(title, scale_headings(report), scale_rows(found["methods"])))
    console.print(table_of("beside the simulation", SIMULATED_HEADINGS, simulated_rows(report)))
    console.print(table_of(link_facts(report), LINK_HEADINGS, link_rows(report)))
