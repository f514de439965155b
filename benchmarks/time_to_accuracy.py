"""How long it takes to become robust: validation accuracy against the seconds of training.

Trains several presets side by side, an epoch of each in turn, in an order that changes. Accuracies are those
of the presets' validation; its time is not counted, nor that of writing files. The same command resumes an
interrupted measurement; each run is a folder that `atlas train --resume` and `atlas evaluate` open.

  python -m benchmarks time --json time.json --figure time.svg      # hours on one core
  python -m benchmarks time demo-adv-1 demo-atlas-1 --set training.schedule.epochs=8      # a minute or two
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from atlas import presets
from atlas.cli.console import console
from atlas.config import overridden
from atlas.distributed.launch import checked_device
from atlas.errors import Interrupted, UsageError
from atlas.machine import machine
from atlas.runs import Record, Run
from atlas.signals import caught_signals
from atlas.training import RunConfig, StopTraining, train
from atlas.training.settings import REGISTRIES
from benchmarks.command import Repeated, add_shared, at_least, settings_of
from benchmarks.tables import Blocks, ChartPanel, TextTable, chart, machine_facts
from benchmarks.timing import Contestant, interleave

PRESETS = tuple(f"mnist-quick-{name}-{steps}" for steps in (1, 20) for name in ("adv", "trades", "atlas"))
EVENT = "trained"
"""The name of our lines in a run's `timing.jsonl`: the number of steps and their seconds."""


@dataclass(frozen=True)
class TimedRun:
    """A configuration, and the folder that it is trained in."""

    config: RunConfig
    folder: Path

    @property
    def label(self) -> str:
        """Such as `atlas-20`."""
        steps = getattr(self.config.method.attack, "steps", 0)
        name = self.config.table()["method"]["name"]
        return f"{name}-{steps}" if steps else name

    def turn(self, options: Namespace, epoch: int) -> tuple[float, None]:
        """Train the epoch, or the rest of it, unless it is finished; the seconds are noted in the folder."""
        watch = Stopwatch()

        def pause(lines: Sequence[Record]) -> None:
            self.note(lines[-1]["epoch"], watch)
            raise StopTraining("the other runs are next")

        rest: dict[str, Any] = {"data_root": options.root, "device": options.device, "on_step": watch}
        if len(self.curve()) <= epoch:
            try:
                train(self.config, self.folder, progress=False, on_epoch=pause, **rest)
            except Interrupted:
                self.note(epoch, watch)
                raise
            if watch.steps:
                last = self.curve()[-1]
                found = f"{100 * last['robust']:.1f}% robust after {last['seconds']:.1f} s"
                console.print(f"{self.label}, epoch {epoch + 1}: {found}")
        return watch.seconds, None

    def note(self, epoch: int, watch: Stopwatch) -> None:
        line = {"at": round(time.time(), 3), "event": EVENT, "epoch": epoch}
        line |= {"steps": watch.steps, "training": round(watch.seconds, 4)}
        with Run(self.folder).timing_path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def curve(self) -> list[dict[str, float]]:
        """After each epoch: the seconds of training so far, and the validation accuracies."""
        steps, seconds = defaultdict[int, int](int), defaultdict[int, float](float)
        for line in Run(self.folder).times:
            if line["event"] == EVENT:
                steps[line["epoch"]] += line["steps"]
                seconds[line["epoch"]] += line["training"]
        found, total, before = [], 0.0, 0
        for r in Run(self.folder).epochs:
            if steps[r["epoch"]] != r["step"] - before:
                raise UsageError(
                    f"the seconds of epoch {r['epoch'] + 1} of {self.folder} are not known (another "
                    "command trained it, or it was killed): start that run in a new folder"
                )
            total, before = total + seconds[r["epoch"]], r["step"]
            found.append({"seconds": total, "clean": r["val_clean"], "robust": r["val_robust"]})
        return found


@dataclass
class Stopwatch:
    """A callback that measures the steps of an epoch, including the batches made between them."""

    steps: int = 0
    began: float = 0.0
    ended: float = 0.0

    def __call__(self, record: Record) -> None:
        self.ended = time.perf_counter()
        self.began = self.began or self.ended - record["seconds"]
        self.steps += 1

    @property
    def seconds(self) -> float:
        """From the begin of the first step to the end of the last."""
        return self.ended - self.began


def add_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    presets = "presets or their files (default: mnist-quick-*-1 and -20)"
    add("presets", nargs="*", default=PRESETS, metavar="PRESET", help=presets)
    out = "where the runs' folders go (default: runs/time)"
    add("--out", type=Path, default=Path("runs/time"), help=out)
    marks = "a robust accuracy to reach; repeatable (default: 0.5 0.8 0.9)"
    add("--mark", action=Repeated, type=at_least(0, float), default=(0.5, 0.8, 0.9), help=marks)
    add_shared(parser, root=None, device=None, precision=None, set=())


def run(options: Namespace) -> dict[str, Any]:
    runs, settings = [], settings_of(options)
    for what in options.presets:
        name, table = presets.load_preset(what)
        runs.append(
            TimedRun(RunConfig.of(overridden(table, settings.items(), REGISTRIES)), options.out / name)
        )
    if len({each.folder for each in runs}) < len(runs):
        raise UsageError(f"the presets must have different names, got {', '.join(options.presets)}")
    for each in runs:
        each.curve()  # refuses epochs of unknown seconds before any more are trained

    epochs = max(each.config.training.schedule.epochs for each in runs)
    turns = [Contestant(each.label, partial(each.turn, options)) for each in runs]
    with caught_signals() as requests:
        interleave({"an epoch": turns}, epochs, f"training in {options.out}", warm_up=0, after=requests.check)
    return report_of(runs, sorted(options.mark), machine(checked_device(options.device)))


def report_of(runs: Sequence[TimedRun], marks: Sequence[float], about: Mapping[str, Any]) -> dict[str, Any]:
    """All that was measured, and when each run passed each mark: None if it never did."""
    found = []
    for each in runs:
        curve = each.curve()
        passed = [next((e["seconds"] for e in curve if e["robust"] >= mark), None) for mark in marks]
        names: dict[str, Any] = {"run": each.folder.name, "method": each.label, "model": each.config.model}
        names |= {"data": each.config.data, "config": Run.open(each.folder).config}
        found.append({**names, "laps": curve, "passed": passed})
    return {"machine": about, "marks": list(marks), "runs": found}


def blocks(report: Mapping[str, Any]) -> Blocks:
    marks = (f"s to {100 * mark:g}%" for mark in report["marks"])
    headings = ("method", "epochs", "s per epoch", *marks, "best robust %", "after s")
    rows = []
    for each in report["runs"]:
        if curve := each["laps"]:
            best = max(curve, key=lambda epoch: epoch["robust"])
            passed = ("-" if seconds is None else f"{seconds:.0f}" for seconds in each["passed"])
            first = (each["method"], str(len(curve)), f"{curve[-1]['seconds'] / len(curve):.1f}")
            rows.append((*first, *passed, f"{100 * best['robust']:.1f}", f"{best['seconds']:.0f}"))
    return [f"Measured on {machine_facts(report)}; {subject_of(report)}.", TextTable(headings, rows)]


def subject_of(report: Mapping[str, Any]) -> str:
    """The network, the data, and the attack on the validation images."""
    first = report["runs"][0]
    training = first["config"]["training"]
    size, attack = training["validation"]["size"], training["validation"]["attack"]
    keys = ("objective", "restarts", "steps", "step_size", "relative_step")
    said = ", ".join(f"{key.replace('_', ' ')} {attack[key]}" for key in keys if attack.get(key) is not None)
    faster = "".join(f", {key} {training[key]}" for key in ("precision", "channels_last") if key in training)
    images = f"{100 * size:g}% of the images" if size < 1 else f"{size} images"
    validation = f"validation on {images} by {attack['name']} ({said}) at the full eps"
    return f"{first['model']} on {first['data']}{faster}, {validation}; seconds are those of training alone"


def draw(report: Mapping[str, Any]) -> Figure:
    methods = list(dict.fromkeys(each["method"].partition("-")[0] for each in report["runs"]))
    panel = ChartPanel("seconds of training, without validation")
    for each in report["runs"]:
        name, _, steps = each["method"].partition("-")
        x, y = ([epoch[key] for epoch in each["laps"]] for key in ("seconds", "robust"))
        line = "o-" if steps in ("", "1") else "s--"
        panel.add(x, [100 * robust for robust in y], line, each["method"], methods.index(name))
    ends = [epoch["seconds"] for each in report["runs"] for epoch in each["laps"]]
    for mark in report["marks"]:
        panel.add([min(ends), max(ends)], [100 * mark] * 2, ":", "")
    return chart([panel], "validation robust accuracy in %", height=3.2, log_y=False)
