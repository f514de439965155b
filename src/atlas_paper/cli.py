"""`atlas reproduce`."""

from __future__ import annotations

import json
import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from atlas.cli.console import Root, console, say
from atlas.distributed.launch import checked_device
from atlas.errors import Interrupted, UsageError, choose
from atlas.terminal import duration
from atlas.training.precision import fastest
from atlas_paper.artefacts import ARTEFACTS
from atlas_paper.cells import JobResult
from atlas_paper.request import SCALES, Request
from atlas_paper.results import NO_RESULT, Results, write
from atlas_paper.workspace import Workspace

WORKSPACE = Path("runs/reproduce")


def reproduce(
    artefact: Annotated[str | None, typer.Argument(help="A table or figure of the paper: --list.")] = None,
    scale: Annotated[
        str,
        typer.Option(help="paper: its sizes; cpu: a network and images for two cores; smoke: seconds."),
    ] = "cpu",
    seeds: Annotated[int, typer.Option(help="Train every row from this many seeds: 0, 1, ...")] = 1,
    rows: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEYS", help="Only these rows: keys or patterns, separated by commas; repeatable."
        ),
    ] = None,
    network: Annotated[str, typer.Option(help="Of MNIST's rows: cnn or cnn-small; default: by scale.")] = "",
    version: Annotated[
        str, typer.Option(help="Of MNIST's rows: written (the paper's settings) or tuned.")
    ] = "written",
    workspace: Annotated[Path, typer.Option(help="Folder of runs, evaluations and results.")] = WORKSPACE,
    runs: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A folder to search for finished runs; only read; repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The artefact's folder; default: in workspace.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List all artefacts and what they cost.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs, their states, and what is missing.")
    ] = False,
    finished: Annotated[
        bool, typer.Option("--finished", help="Run nothing: write the artefact from what is finished.")
    ] = False,
    precision: Annotated[
        str, typer.Option(help="Of all trainings, as for `atlas train`; auto: what is fast on this machine.")
    ] = "float32",
    attack_dtype: Annotated[
        str, typer.Option(help="float32, or bfloat16: search faster, verify in float32.")
    ] = "float32",
    device: Annotated[str | None, typer.Option(help="cpu, cuda ...; default: a GPU if there is one.")] = None,
    root: Root = None,
) -> None:
    """Reproduce a table or a figure of the paper, next to the paper's numbers.

    - `atlas reproduce --list` : all of them, with what they cost on two cores
    - `atlas reproduce table1-mnist --scale smoke` : does it all work? Seconds
    - `atlas reproduce table1-mnist --rows adv-1,atlas-1 --runs runs` : two rows, from existing runs
    - `atlas reproduce table1-mnist --network cnn --precision auto` : the larger network, faster
    - `atlas reproduce ablation-cifar10 --seeds 3 --dry-run` : what that would run

    Finished runs and evaluations are found by their configuration, and not repeated. After an interruption
    or a crash, the same command resumes.
    """
    if show_list:
        _list()
        return
    if artefact is None:
        raise UsageError("ARTEFACT is missing: a table or figure of the paper; --list shows all")
    for folder in runs or ():
        if not folder.is_dir():
            raise UsageError(f"--runs {folder}: no such folder")
    request = Request(
        choose("artefact", artefact, ARTEFACTS),
        scale,
        network,
        version,
        seeds,
        tuple(key.strip() for part in rows or () for key in part.split(",") if key.strip()),
        attack_dtype,
        fastest(checked_device(device)).get("precision", "float32") if precision == "auto" else precision,
    )
    space = Workspace(workspace, tuple(runs or ()), root, device, say)
    if dry_run:
        _print_jobs(request, space)
        return
    stopped = None
    try:
        if not finished:
            space.work(request.jobs)
    except Interrupted as error:
        stopped = error
    results = Results.of(request, space)
    paths = write(results, out or workspace / "results" / request.name)
    _print_numbers(results)
    for path in paths:
        say(f"  {path}")
    if scale == "smoke":
        say(NO_RESULT)
    if results.missing:
        options: list[tuple[str, object]] = [("--runs", folder) for folder in runs or ()]
        options += [("--workspace", workspace if workspace != WORKSPACE else None)]
        options += [("--out", out), ("--root", root), ("--device", device)]
        given = [f"{name} {shlex.quote(str(value))}" for name, value in options if value is not None]
        say(f"missing: {'; '.join(results.missing)}")
        say(f"to continue: {' '.join([results.remaining.command, *given])}")
    if stopped:
        raise stopped


def _print_numbers(results: Results) -> None:
    """Each number on its own line, so that any terminal is wide enough."""
    if results.request.artefact.columns:
        table = Table("", "", "paper", "ours [95% interval]", "difference", "n", box=None, pad_edge=False)
        for row in results.rows:
            name = results.request.row_name(row)
            for column, result in results.cells[row.key].items():
                cell, n = result.cell(), "" if result.n is None else f"{result.n:,}"
                ours = f"{cell.text} {cell.bounds}".strip()
                table.add_row(name, column, result.paper_cell().text, ours, result.difference_cell().text, n)
                name = ""
            table.add_section()
        console.print(table)
        return
    for part in results.tables.values():
        table = Table("", "", "", title=part.title, box=None, pad_edge=False, show_header=False)
        for first, *cells in part.rows:
            for k, (column, cell) in enumerate(zip(part.columns[1:], cells, strict=True)):
                table.add_row("" if k else first.text, column, cell.text)
            table.add_section()
        console.print(table)
        for note in part.legend:
            say(note)


def _costs() -> tuple[dict[str, dict[str, float]], str]:
    """Seconds by artefact and scale, estimated once, and the machine that they are for."""
    costs = json.loads((resources.files("atlas_paper") / "costs.json").read_text("utf-8"))
    return costs["seconds"], "{cores} cores of {cpu}".format(**costs["machine"])


def _list() -> None:
    """All artefacts, with the time that each takes at each scale from nothing and for one seed."""
    seconds, where = _costs()
    table = Table("artefact", "of", *SCALES, box=None, pad_edge=False)
    for name, artefact in ARTEFACTS.items():
        times = (duration(seconds[name][scale]) if name in seconds else "-" for scale in SCALES)
        table.add_row(name, artefact.of, *times)
    console.print(table)
    say(
        f"paper, cpu and smoke are scales: the estimated time of each on {where}, from nothing and for one "
        "seed, with one process per core (--rows). Artefacts share runs, so all together take less than the "
        "sum.\n"
        "Next: atlas reproduce table1-mnist --scale smoke (seconds; its numbers are no result)"
    )


def _print_jobs(request: Request, workspace: Workspace) -> None:
    """The runs of a request, how far each has come, and what is missing."""
    table = Table("run", "preset", "state", "attacks done", "attacks left", box=None, pad_edge=False)
    trainings = evaluations = 0
    for job in request.jobs:
        found = JobResult.of(job, workspace)
        left = [spec.label for spec in job.attacks if spec.label not in found.reports]
        state = found.state if found.state == "finished" else found.lacks
        table.add_row(job.name, job.run.name, state, ", ".join(found.reports), ", ".join(left))
        trainings += found.state != "finished"
        evaluations += len(left)
    console.print(table)
    say(f"missing: {trainings} trainings and {evaluations} evaluations")
    (seconds, where), name = _costs(), request.artefact.name
    if name in seconds:
        hours = duration(seconds[name][request.scale])
        say(f"{name} at scale {request.scale}, from nothing and for one seed: about {hours} on {where}")
