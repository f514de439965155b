"""Accuracy against seconds of training: read from the runs' folders, as a table, as Markdown, and drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atlas.bench.drawing import GRAY, plain_log, write_figure
from atlas.bench.race import EVENT, Runner
from atlas.bench.report import grid, markers
from atlas.errors import UsageError
from atlas.report import plots
from atlas.training.folder import RunFolder
from atlas.training.log import read_metrics, read_times

TIME_MARKERS = markers("time")
SAID = ("objective", "restarts", "steps", "step_size", "relative_step")
"""What is told of the validation attack."""
LEVERS = ("precision", "channels_last")
"""What is told of training, where it is not as it is by itself."""


def laps(runner: Runner) -> list[dict[str, float]]:
    """After each epoch: the seconds of training so far, and the validation accuracies."""
    place = RunFolder(runner.folder)
    epochs = [r for r in read_metrics(place.metrics) if r["kind"] == "epoch"]
    pieces = defaultdict(list)
    for line in read_times(place.timing):
        if line["event"] == EVENT:
            pieces[line["epoch"]].append(line)
    found, seconds, before = [], 0.0, 0
    for record in epochs:
        mine = pieces[record["epoch"]]
        if sum(piece["steps"] for piece in mine) != record["step"] - before:
            raise UsageError(
                f"epoch {record['epoch'] + 1} of {runner.folder} was trained by another command, or was cut "
                "off: its seconds are not known; start that run in a new folder"
            )
        seconds, before = seconds + sum(piece["training"] for piece in mine), record["step"]
        found.append({"seconds": seconds, "clean": record["val_clean"], "robust": record["val_robust"]})
    return found


def race_report(
    runners: Sequence[Runner], marks: Sequence[float], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """All that was measured, and when each run passed each mark: None where it never did."""
    records = []
    for runner in runners:
        found = laps(runner)
        passed = [next((lap["seconds"] for lap in found if lap["robust"] >= mark), None) for mark in marks]
        about: dict[str, Any] = {
            "run": runner.folder.name,
            "method": runner.label,
            "model": runner.config.model,
        }
        about |= {"data": runner.config.data, "config": RunFolder(runner.folder).read_config()}
        records.append({**about, "laps": found, "passed": passed})
    return {"machine": machine, "marks": list(marks), "runs": records}


def race_headings(report: Mapping[str, Any]) -> tuple[str, ...]:
    marks = (f"s to {100 * mark:g}%" for mark in report["marks"])
    return "method", "epochs", "s an epoch", *marks, "best robust %", "after s"


def race_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Text under `race_headings`; a dash where a mark was never passed."""
    return [_row(run) for run in report["runs"] if run["laps"]]


def _row(run: Mapping[str, Any]) -> tuple[str, ...]:
    best = max(run["laps"], key=lambda lap: lap["robust"])
    passed = ("-" if seconds is None else f"{seconds:.0f}" for seconds in run["passed"])
    each = run["laps"][-1]["seconds"] / len(run["laps"])
    return (
        *(run["method"], str(len(run["laps"])), f"{each:.1f}", *passed),
        *(f"{100 * best['robust']:.1f}", f"{best['seconds']:.0f}"),
    )


def race_facts(report: Mapping[str, Any]) -> str:
    """The circumstances: the machine, the network, and the attack of the validation images."""
    m, first = report["machine"], report["runs"][0]
    training = first["config"]["training"]
    validation = training["validation"]
    size, attack = validation["size"], validation["attack"]
    said = [f"{key.replace('_', ' ')} {attack[key]}" for key in SAID if attack.get(key) is not None]
    levers = "".join(f", {key} {training[key]}" for key in LEVERS if key in training)
    images = f"{100 * size:g}% of the images" if size < 1 else f"{size} images"
    return (
        f"{m['device']} ({m['cpu']}, {m['cores']} cores, {m['threads']} threads), torch {m['torch']}; "
        f"{first['model']} on {first['data']}{levers}, validation on {images} by {attack['name']} "
        f"({', '.join(said)}) at the full eps; seconds are those of training alone"
    )


def race_markdown(report: Mapping[str, Any]) -> str:
    return f"Measured on {race_facts(report)}.\n\n{grid(race_headings(report), race_rows(report))}"


def draw_race(report: Mapping[str, Any], path: Path) -> None:
    """Write the figure; the kind is that of the path's ending."""
    methods = list(dict.fromkeys(run["method"].partition("-")[0] for run in report["runs"]))
    with plots.style():
        figure, ax = plots.subplots(width=plots.DOUBLE, height=3.2)
        for run in report["runs"]:
            name, _, steps = run["method"].partition("-")
            colour = plots.PALETTE[methods.index(name) % len(plots.PALETTE)]
            one = steps in ("", "1")
            ax.plot(
                [lap["seconds"] for lap in run["laps"]],
                [100 * lap["robust"] for lap in run["laps"]],
                "o-" if one else "s--",
                color=colour,
                mfc=colour if one else "none",
                label=plots.label(run["method"]),
            )
        for mark in report["marks"]:
            ax.axhline(100 * mark, color=GRAY, lw=0.8, ls=":")
        ax.set_xscale("log")
        plain_log(ax.xaxis)
        ax.set_xlabel("seconds of training, without validation")
        ax.set_ylabel("validation robust accuracy in %")
        figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=len(report["runs"]))
        write_figure(figure, path)
