"""`atlas bench step`."""

from __future__ import annotations

from pathlib import Path
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
    Part,
    PrecisionOption,
    Repeats,
    SettingsOption,
    Shape,
    bar,
    made,
    put,
    settings_of,
    shape_of,
    table_of,
    write,
)
from atlas.cli.console import console
from atlas.training.run import checked_device

TOP = 10
"""Operators that are shown of a profile."""


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
    precision: PrecisionOption = None,
    settings: SettingsOption = None,
    json_file: JsonFile = None,
    markdown_file: MarkdownFile = None,
    part: Part = "",
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write a trace of a step of each method there (for ui.perfetto.dev), and print its dearest "
            "operators.",
        ),
    ] = None,
) -> None:
    """The time of a whole training step over that of the bare passes that its equation needs; its memory.

    Each repeat times both, side by side, for every method; a ratio is the median of the repeats' ratios. The
    last columns are the FLOPs bound in forward passes, and that bound over the one of `adv-1`. A second table
    has the activations that a step must keep for its gradients, and the most memory that it takes at a time.

    - `atlas bench step`
    - `atlas bench step --model cnn-small --method adv-1 --method atlas-1 --repeats 100`
    - `atlas bench step --precision auto` : over the bare passes in float32, which they always are
    - `atlas bench step --model my.module:network --shape 3x64x64 --device cuda --json speed.json`
    - `atlas bench step --model cnn --method atlas-1 --profile traces` : where does the time go?
    """
    # The reference of the ratios is always measured.
    chosen = [bench.case(label) for label in (*(method or bench.MEASURED), bench.REFERENCE)]
    cases = list({case.label: case for case in chosen}.values())
    if markdown_file is not None:
        bench.check_markers(markdown_file, *bench.markers("step", part))
    chosen_settings = settings_of(settings, precision, device)
    report: dict[str, Any] = {
        "machine": bench.machine(checked_device(device)),
        "batch": batch,
        "repeats": repeats,
    }
    report |= {"settings": chosen_settings, "models": []}
    for name in model or MODELS:
        made_of = (name, batch, shape_of(name, shape), device)
        report["models"].append(_measured(*made_of, cases, repeats, chosen_settings))
    console.print(bench.facts(report))
    for found in report["models"]:
        title = f"{found['model']}, {found['parameters']:,} weights"
        console.print("", table_of(title, bench.HEADINGS, bench.rows(found["methods"])))
        memory = bench.memory_rows(found["methods"])
        console.print("", table_of(f"{found['model']}, memory", bench.MEMORY_HEADINGS, memory))
    write(report, json_file)
    put(bench.markdown(report), markdown_file, bench.markers("step", part))
    if profile is not None:
        for name in model or MODELS:
            _profile(name, batch, shape_of(name, shape), device, cases, chosen_settings, profile)


def _measured(
    name: str,
    size: int,
    shape: tuple[int, ...],
    device: str,
    cases: list[bench.Case],
    repeats: int,
    settings: bench.Settings,
) -> dict[str, Any]:
    """The measurements of one model, under a bar with the time left."""
    batch, network = made(name, size, shape, device)
    with bar() as progress:
        task = progress.add_task(name, total=len(cases) * (repeats + bench.WARM_UP))
        timings = bench.measure(
            network, cases, batch, repeats, settings=settings, each=lambda: progress.advance(task)
        )
    methods = bench.summary(timings, bench.memories(network, cases, batch, settings))
    parameters = models.count_parameters(network)
    return {"model": name, "shape": shape, "parameters": parameters, "methods": methods}


def _profile(
    name: str,
    size: int,
    shape: tuple[int, ...],
    device: str,
    cases: list[bench.Case],
    settings: bench.Settings,
    folder: Path,
) -> None:
    """A trace of a step of each method, and a table of its dearest operators."""
    batch, network = made(name, size, shape, device)
    for pair in bench.pairs(network, cases, batch, settings):
        path = folder / f"{name.replace(':', '-')}-{pair.case.label}.json"
        found = bench.trace(pair.step, path)[:TOP]
        rows = [(each.name, str(each.calls), f"{each.ms:.1f}", f"{100 * each.share:.0f}") for each in found]
        headings = ("operator", "calls", "ms", "% of the step")
        console.print("", table_of(f"{name}, {pair.case.label}: {path}", headings, rows))
