"""`atlas bench time`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from atlas import bench
from atlas.bench.drawing import kind_of
from atlas.bench.race import Runner, race
from atlas.bench.race_report import (
    TIME_MARKERS,
    draw_race,
    laps,
    race_facts,
    race_headings,
    race_markdown,
    race_report,
    race_rows,
)
from atlas.cli.bench_tools import (
    JsonFile,
    MarkdownFile,
    PrecisionOption,
    bar,
    put,
    settings_of,
    table_of,
    write,
)
from atlas.cli.console import Root, console
from atlas.cli.train import setting
from atlas.config import overridden
from atlas.errors import UsageError
from atlas.reproduce import preset
from atlas.training import RunConfig
from atlas.training.run import checked_device
from atlas.training.settings import REGISTRIES

PRESETS = tuple(f"mnist-quick-{name}-{steps}" for steps in (1, 20) for name in ("adv", "trades", "atlas"))
MARKS = (0.5, 0.8, 0.9)


def time(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PRESET_OR_FILE]...", help="Default: the six rows `mnist-quick-*-1` and `-20`."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of all runs; again for more."),
    ] = None,
    precision: PrecisionOption = None,
    out: Annotated[Path, typer.Option(help="Where the runs' folders go.")] = Path("runs/time"),
    mark: Annotated[
        list[float] | None,
        typer.Option(min=0, max=1, help="A robust accuracy to reach; again for more. Default: 0.5 0.8 0.9."),
    ] = None,
    root: Root = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1 ...; default: a GPU if there is one.")
    ] = None,
    json_file: JsonFile = None,
    markdown_file: MarkdownFile = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw it: a file that ends in .svg, .pdf or .png.")
    ] = None,
) -> None:
    """How long it takes to become robust: validation accuracy against the seconds of training.

    Trains several presets side by side, an epoch of each in turn, in an order that changes, so that what else
    the machine does falls on all. Accuracies are those of the presets' own validation, in these a PGD with
    margin loss at the full eps; its time is not counted, nor that of writing files. The same command again
    goes on where it was; each run is a folder that `atlas train --resume` and `atlas evaluate` know.

    - `atlas bench time --json time.json --figure time.svg` : hours on one core
    - `atlas bench time demo-adv-1 demo-atlas-1 --set training.schedule.epochs=8` : a minute or two
    """
    if markdown_file is not None:
        bench.check_markers(markdown_file, *TIME_MARKERS)
    if figure is not None:
        kind_of(figure)  # a wrong one is refused before anything is measured
    short = settings_of(None, precision, device)
    changes = [*short.items(), *map(setting, settings or [])]
    runners = [_runner(name, changes, out) for name in what or PRESETS]
    if len({runner.folder for runner in runners}) < len(runners):
        raise UsageError(f"two of {', '.join(what or ())} have one name, and would share a folder")
    for runner in runners:
        laps(runner)  # refuses epochs of unknown seconds, before any more are trained
    marks = sorted(mark or MARKS)
    with bar() as progress:
        done = sum(runner.cost * runner.epochs for runner in runners)
        total = sum(runner.cost * runner.config.training.schedule.epochs for runner in runners)
        task = progress.add_task(f"training in {out}", total=total, completed=done)

        def each(runner: Runner) -> None:
            last = laps(runner)[-1]
            progress.console.print(
                f"{runner.label}, epoch {runner.epochs}: {100 * last['robust']:.1f}% robust after "
                f"{last['seconds']:.1f} s",
            )
            progress.advance(task, runner.cost)

        race(runners, root=root, device=device, each=each)
    report = race_report(runners, marks, bench.machine(checked_device(device)))
    console.print(race_facts(report))
    console.print("", table_of("", race_headings(report), race_rows(report)))
    write(report, json_file)
    put(race_markdown(report), markdown_file, TIME_MARKERS)
    if figure is not None:
        draw_race(report, figure)
        console.print(f"drawn in {figure}")


def _runner(what: str, changes: list[tuple[str, Any]], out: Path) -> Runner:
    name, table = preset.load_preset(what)
    return Runner(RunConfig.of(overridden(table, changes, REGISTRIES)), out / name)
