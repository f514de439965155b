"""`atlas bench attack`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import nn

from atlas import bench
from atlas import data as data_sets
from atlas.attacks.lanes import ask
from atlas.cli.bench_tools import Device, MarkdownFile, Part, Repeats, put, table_of
from atlas.cli.console import Root, console
from atlas.cli.subject import named
from atlas.config import number
from atlas.disk import write_atomic
from atlas.errors import UsageError
from atlas.evaluation.plan import chosen_images
from atlas.models.source import fingerprint
from atlas.terminal import Terminal
from atlas.threat import Linf, Threat
from atlas.training.run import checked_device

DAY = 86400.0


def attack(
    weights: Annotated[
        list[str],
        typer.Option(help="A run's folder, or weights (.safetensors, with --model); again for more."),
    ],
    model: Annotated[
        str | None, typer.Option(help="Whose weights the files hold: see `atlas models`.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="A data set's name or path; default: the run's.")] = None,
    eps: Annotated[
        str | None, typer.Option(help="The radius in L-inf, such as 8/255; default: the run's.")
    ] = None,
    n: Annotated[int, typer.Option(min=1, help="How many test images, from the first.")] = 512,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="pgd, un-t, apgd, apgd-t, fab-t, square or autoattack; again for more. Default: all."
        ),
    ] = None,
    budget: Annotated[float, typer.Option(help="The share of steps and queries, for a quick look.")] = 1.0,
    repeats: Repeats = 3,
    batch: Annotated[int, typer.Option(min=2, help="Images at a time, for all.")] = 256,
    device: Device = "cpu",
    root: Root = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Keep every time in this file, written after each run.")
    ] = None,
    markdown_file: MarkdownFile = None,
    part: Part = "",
) -> None:
    """The time of each attack in other libraries over that of ours, and what each leaves standing.

    All run on the same model, images, batches and budget, one after the other, in an order that changes from
    repeat to repeat. A ratio is the median of the repeats' ratios. A library that is not there is named.

    - `atlas bench attack --weights runs/mnist-adv-1 --budget 0.01 --n 64 --repeats 1` : does it all work?
    - `atlas bench attack --weights runs/mnist-adv-1 --attack pgd --attack autoattack --json times.json`
    - `atlas bench attack --weights w.safetensors --model cnn-small --data mnist --eps 0.3`
    """
    markers = bench.markers("attack", part)
    if markdown_file is not None:
        bench.check_markers(markdown_file, *markers)
    jobs = {what: _job(what, model, data, eps, n, batch, device, root) for what in weights}
    contests = {
        what: [bench.contest(case) for case in bench.attack_cases(job.images.name, budget, attack or ())]
        for what, job in jobs.items()
    }
    report: dict[str, Any] = {"machine": bench.machine(checked_device(device)), "peers": bench.versions()}
    report |= {"batch": batch, "repeats": repeats, "budget": budget, "models": []}
    try:
        for what, job in jobs.items():
            _measure(what, job, contests[what], report, json_file)
    finally:
        _print(report)
    if json_file is not None:
        console.print(f"times written to {json_file}")
    put(bench.attack_markdown(report), markdown_file, markers)


def _job(
    what: str,
    model: str | None,
    data: str | None,
    eps: str | None,
    n: int,
    batch: int,
    device: str,
    root: Path | None,
) -> bench.Job:
    subject = named(what, None if Path(what).is_dir() else model, data, device)
    images = chosen_images(data_sets.load(subject.data, train=False, root=root), n, random=False, seed=0)
    network = subject.load(images).model
    if not isinstance(network, nn.Module):
        raise UsageError(f"{what} has no gradients; wanted a run's folder or weights of a torch module")
    return bench.Job(
        model=network,
        images=images,
        x=images.pixels(device=device),
        y=images.y.to(device),
        eps=_eps(subject.threat, eps),
        batch_size=batch,
    )


def _eps(known: Threat | None, given: str | None) -> float:
    if given is not None:
        return Linf(number(given)).eps
    if not isinstance(known, Linf):
        raise UsageError(f"--eps is missing: a radius in L-inf, such as 8/255 (the run's threat is {known})")
    return known.eps


def _measure(
    what: str, job: bench.Job, contests: list[bench.Contest], report: dict[str, Any], file: Path | None
) -> None:
    """The measurements of one model, under a bar with the time left; all is kept after every run."""
    right = ask(job.model, job.x, job.batch_size).argmax(1) == job.y
    record: dict[str, Any] = {"model": Path(what).stem, "fingerprint": fingerprint(job.model)}
    record |= {"data": job.images.name, "n": len(job.y), "eps": job.eps}
    record |= {"clean": 100 * float(right.float().mean()), "attacks": []}
    report["models"].append(record)
    weight = {each.case.name: each.case.passes(job.images.num_classes) for each in contests}
    total = report["repeats"] * sum(
        weight[each.case.name] * sum(not entry.absent for entry in each.entries) for each in contests
    )
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:.0f}%"),
    )
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *times, console=Terminal(stderr=True), speed_estimate_period=DAY) as bar:
        task = bar.add_task("starting", total=total)

        def before(case: bench.AttackCase, entry: bench.Entry) -> None:
            bar.update(task, description=f"{record['model']}: {case.label}, {entry.name}")

        def after(case: bench.AttackCase, entry: bench.Entry) -> None:
            bar.advance(task, 0 if entry.absent else weight[case.name])
            record["attacks"] = bench.attack_summary(contests, len(job.y))
            if file is not None:
                write_atomic(file, (json.dumps(report, indent=1) + "\n").encode())

        # A copy, because tensors that are sent move into memory that both processes share.
        with bench.apart(bench.Peers, copy.deepcopy(job)) as theirs:
            bench.compete(job, contests, report["repeats"], theirs, before=before, after=after)


def _print(report: dict[str, Any]) -> None:
    console.print(bench.attack_facts(report))
    for model in report["models"]:
        console.print(f"\n{bench.model_title(model)}", style="bold")
        for attack in model["attacks"]:
            title = f"{attack['attack']} ({attack['settings']})"
            rows = bench.attack_rows(attack["contestants"])
            console.print("", table_of(title, bench.ATTACK_HEADINGS, rows, words=1))
