"""`atlas reproduce`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from atlas.cli.console import Root, console, say
from atlas.errors import Interrupted, UsageError, choose
from atlas.files import write_atomic
from atlas.training.precision import fastest
from atlas.training.run import checked_device
from atlas_paper.artefacts import ARTEFACTS
from atlas_paper.comparison import NO_RESULT
from atlas_paper.cost import STORED, Probe, measured, stored
from atlas_paper.dry_run import Job, list_jobs
from atlas_paper.request import Request
from atlas_paper.results import Findings, gather
from atlas_paper.runner import Runner
from atlas_paper.scales import SCALES
from atlas_paper.workspace import Workspace
from atlas_paper.write import write

WORKSPACE = Path("runs/reproduce")
HOUR = 3600.0
SHARED = "where every core has a process of its own (--rows)"
"""What a time that is left takes for granted, on a CPU."""


def reproduce(
    artefact: Annotated[str | None, typer.Argument(help="A table or figure of the paper: --list.")] = None,
    scale: Annotated[
        str,
        typer.Option(help="paper: its own sizes; cpu: a network and images for two cores; smoke: seconds."),
    ] = "cpu",
    seeds: Annotated[int, typer.Option(help="Train every row from so many seeds, 0, 1, ...")] = 1,
    rows: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEYS", help="Only these rows, by key or pattern, with commas between or again for more."
        ),
    ] = None,
    network: Annotated[str, typer.Option(help="Of MNIST's rows: cnn or cnn-small; default: by scale.")] = "",
    version: Annotated[
        str, typer.Option(help="Of MNIST's rows: written (the paper's settings) or tuned.")
    ] = "written",
    workspace: Annotated[Path, typer.Option(help="Where runs, evaluations and results go.")] = WORKSPACE,
    runs: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="A folder where finished runs may lie; only read; again for more."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The artefact's folder; default: in workspace.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List all artefacts and what they cost.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="With --list: estimate the costs on this machine; 20 seconds.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs, how far each is, and what is left.")
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
    """Reproduce a table or a figure of the paper, next to the paper's own numbers.

    - `atlas reproduce --list` : all of them, with what they cost on two cores
    - `atlas reproduce table1-mnist --scale smoke` : does it all work? Seconds
    - `atlas reproduce table1-mnist --rows adv-1,atlas-1 --runs runs` : two rows, from runs that are there
    - `atlas reproduce table1-mnist --network cnn --precision auto` : the larger network, faster
    - `atlas reproduce ablation-cifar10 --seeds 3 --dry-run` : what that would take

    Finished runs and evaluations are found by what they are of, and not repeated. Interrupted or killed, the
    same command goes on where it was.
    """
    if show_list and not measure:
        _list(stored())
        return
    place = Workspace(workspace, tuple(runs or ()))
    probe = Probe(workspace / "probe.json", device, say)
    if show_list:
        costs = measured(ARTEFACTS.values(), probe, place.data)
        write_atomic(workspace / STORED, (json.dumps(costs, indent=1) + "\n").encode())
        _list(costs)
        return
    if artefact is None:
        raise UsageError("ARTEFACT is missing: a table or figure of the paper; --list shows all")
    for other in place.others:
        if not other.is_dir():
            raise UsageError(f"--runs {other}: there is no such folder")
    order = Request(
        choose("artefact", artefact, ARTEFACTS),
        choose("scale", scale, {name: name for name in SCALES}),
        place.data,
        network,
        choose("version", version, {"written": "written", "tuned": "tuned"}),
        seeds,
        tuple(key.strip() for part in rows or () for key in part.split(",") if key.strip()),
        attack_dtype,
        fastest(checked_device(device)).get("precision", "float32") if precision == "auto" else precision,
    )
    lab = Runner(place, root, device, say)
    if dry_run:
        _print_jobs(list_jobs(order, lab, probe))
        return
    options = _options(workspace, runs or [], out, device, root)
    folder = out or place.results(order.name)
    try:
        if not finished:
            lab.work(order)
    except Interrupted:
        _write(order, lab, folder, options)
        raise
    _write(order, lab, folder, options)


def _options(
    workspace: Path, runs: list[Path], out: Path | None, device: str | None, root: Path | None
) -> str:
    """Where things lie, again as options."""
    given: list[tuple[str, object]] = [("--runs", folder) for folder in runs]
    given += [("--workspace", workspace if workspace != WORKSPACE else None)]
    given += [("--out", out), ("--root", root), ("--device", device)]
    return " ".join(f"{name} {shlex.quote(str(value))}" for name, value in given if value is not None)


def _write(order: Request, lab: Runner, folder: Path, options: str) -> None:
    findings = gather(order, lab)
    paths = write(findings, folder)
    if order.artefact.columns:
        _print(findings)
    else:
        _print_summaries(findings, folder)
    for path in paths:
        say(f"  {path}")
    if order.scale == "smoke":
        say(NO_RESULT)
    if findings.missing:
        say(f"missing: {'; '.join(findings.missing)}")
        say(f"to go on: {findings.go_on.command} {options}".rstrip())


def _print(findings: Findings) -> None:
    """Every number in a line of its own, which any terminal is wide enough for."""
    table = Table("", "", "paper", "ours [95% interval]", "difference", "n", box=None, pad_edge=False)
    for row in findings.rows:
        for k, column in enumerate(findings.order.shown(row)):
            value = findings.value(row, column)
            cell, n = value.cell(), "" if value.n is None else f"{value.n:,}"
            ours = f"{cell.text} {cell.bounds}".strip()
            name = findings.name(row) if k == 0 else ""
            table.add_row(name, column, value.paper_cell().text, ours, value.difference_cell().text, n)
        table.add_section()
    console.print(table)


def _print_summaries(findings: Findings, folder: Path) -> None:
    """Of a figure, as written: every number in a line of its own here too."""
    artefact = findings.order.artefact
    written = json.loads((folder / f"{artefact.name}.json").read_text())["tables"]
    for part in (written[name] for name in artefact.tables if name in written):
        table = Table("", "", "", title=part["title"], box=None, pad_edge=False, show_header=False)
        for name, *cells in part["rows"]:
            for k, (column, cell) in enumerate(zip(part["columns"][1:], cells, strict=True)):
                table.add_row("" if k else name, column, cell if isinstance(cell, str) else cell["text"])
            table.add_section()
        console.print(table)
        for note in part["notes"]:
            say(note)


def _list(costs: Mapping[str, Any]) -> None:
    """All artefacts, with the time that each takes at each scale from nothing and for one seed."""
    table = Table("artefact", "of", *SCALES, box=None, pad_edge=False)
    for artefact in ARTEFACTS.values():
        seconds = costs["seconds"][artefact.name]
        table.add_row(artefact.name, artefact.of, *(_hours(seconds[scale]) for scale in SCALES))
    console.print(table)
    where = "{cores} cores of {cpu} ({device})".format(**costs["machine"])
    say(
        f"paper, cpu and smoke are scales: the estimated time of each on {where}, from nothing and for one "
        f"seed, {SHARED}. Artefacts share runs, so all together take less than the sum. --measure estimates "
        "it for this machine.\n"
        "Next: atlas reproduce table1-mnist --scale smoke (seconds; its numbers are no result)"
    )


def _print_jobs(jobs: list[Job]) -> None:
    heads = ("run", "preset", "state", "left", "attacks done", "attacks left", "left")
    table = Table(*heads, box=None, pad_edge=False)
    for job in jobs:
        state = f"{job.state}, {job.epochs} epochs" if job.epochs else job.state
        done, left = ", ".join(job.done), ", ".join(job.left)
        table.add_row(job.what, job.run.name, state, _hours(job.training), done, left, _hours(job.attacks))
    console.print(table)
    total = sum(job.training + job.attacks for job in jobs)
    say(f"{_hours(total)} left in all on this machine, {SHARED}: an estimate, from the times of single steps")


def _hours(seconds: float) -> str:
    """With two digits; below a tenth of an hour in seconds."""
    if seconds < HOUR / 10:
        return f"{seconds:.0f} s"
    return f"{seconds / HOUR:.2g} h" if seconds < 10 * HOUR else f"{seconds / HOUR:,.0f} h"
