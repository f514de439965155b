"""`atlas bench peers`."""

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


def peers(
    model: ModelNames = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A method and its attack steps, such as `atlas-1`; again for more. Default: "
            f"{', '.join(bench.MATCHED)}."
        ),
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
) -> None:
    """The time of a training step in other libraries, and in the textbook's loop, over that of ours.

    All train the same network on the same batch by the same method, a step at a time, one after the other, in
    an order that changes from repeat to repeat. A ratio is the median of the repeats' ratios: above 1, we are
    faster. The note says where somebody's step is another mathematics. A library that is not there is named.

    - `atlas bench peers --model cnn-small --repeats 3` : half a minute: does it all work?
    - `atlas bench peers --method adv-1 --method atlas-1 --json peers.json`
    - `atlas bench peers --precision auto` : ours as it is, and as fast as it can be
    - `atlas bench peers --model wrn-28-8 --batch 8 --repeats 5`
    """
    labels = list(dict.fromkeys(method or bench.MATCHED))
    for label in labels:
        bench.match(label)  # a wrong one is refused before anything is measured
    if markdown_file is not None:
        bench.check_markers(markdown_file, *bench.markers("peers", part))
    chosen = settings_of(settings, precision, device)
    versions = {name: bench.versions()[name] for name in ("torchattacks", "adversarial-robustness-toolbox")}
    report: dict[str, Any] = {"machine": bench.machine(checked_device(device)), "peers": versions}
    report |= {"batch": batch, "repeats": repeats, "settings": chosen, "models": []}
    for name in model or MODELS:
        report["models"].append(
            _measured(name, batch, shape_of(name, shape), device, labels, repeats, chosen)
        )
        write(report, json_file)
    console.print(bench.match_facts(report))
    for found in report["models"]:
        for each in found["methods"]:
            rows = bench.match_rows(each["sides"])
            title = f"{found['model']}, {each['method']}"
            console.print("", table_of(title, bench.MATCH_HEADINGS, rows, words=1))
        if own := bench.own_rows(found["methods"]):
            console.print("", table_of(found["model"], bench.OWN_HEADINGS, own))
    put(bench.match_markdown(report), markdown_file, bench.markers("peers", part))


def _measured(
    name: str,
    size: int,
    shape: tuple[int, ...],
    device: str,
    labels: list[str],
    repeats: int,
    settings: bench.Settings,
) -> dict[str, Any]:
    """The measurements of one model, under a bar with the time left."""
    batch, network = made(name, size, shape, device)
    matches = [bench.match(label, settings) for label in labels]
    turns = sum(len(match.sides) for match in matches) * (repeats + bench.WARM_UP)
    with bar() as progress, bench.apart(bench.steps, name, size, shape, device) as theirs:
        task = progress.add_task(name, total=turns)
        bench.play(
            matches, network, batch, repeats, theirs, settings=settings, each=lambda: progress.advance(task)
        )
    parameters = models.count_parameters(network)
    return {"model": name, "shape": shape, "parameters": parameters, "methods": bench.match_summary(matches)}
