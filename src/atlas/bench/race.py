"""Runs that are trained side by side, an epoch each in turn, with the seconds of their training alone.

Every run is one of `atlas.training.train` in a folder of its own: it can be interrupted, and gone on with by
the same command or by `atlas train --resume`.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atlas.bench.passes import EQUATIONS
from atlas.errors import Interrupted
from atlas.signals import caught_signals
from atlas.training import Ranks, RunConfig, train
from atlas.training.folder import RunFolder
from atlas.training.log import Record, read_metrics
from atlas.training.ranks import Share

EVENT = "trained"
"""The name of our lines in a run's `timing.jsonl`: how many steps were made, and in how many seconds."""


class Paused(Exception):
    """An epoch is done and saved: it is the others' turn."""


@dataclass(frozen=True)
class Runner:
    """A configuration, and the folder that it is trained in."""

    config: RunConfig
    folder: Path

    @property
    def steps(self) -> int:
        """Of the method's attack."""
        return int(getattr(self.config.method.attack, "steps", 0))

    @property
    def method(self) -> str:
        """Its name in the configuration."""
        return str(self.config.table()["method"]["name"])

    @property
    def label(self) -> str:
        """Such as `atlas-20`."""
        return f"{self.method}-{self.steps}" if self.steps else self.method

    @property
    def cost(self) -> int:
        """Of an epoch beside that of the others: the FLOPs bound of a step, in forward passes."""
        equation = EQUATIONS.get(self.method)
        return equation.passes.attacked(self.steps).cost if equation else 1

    @property
    def epochs(self) -> int:
        """How many are done."""
        return sum(line["kind"] == "epoch" for line in read_metrics(RunFolder(self.folder).metrics))


@dataclass(frozen=True)
class Stopwatch(Ranks):
    """One process that trains alone, and knows when each of its steps began and ended.

    A trainer asks for its share before a step and whether to leave after it; after validation it asks the
    latter again, which is no step's end.
    """

    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    def share(self, count: int) -> Share:
        self.began.append(time.perf_counter())
        return super().share(count)

    def agree(self, signal: int | None) -> int | None:
        if len(self.ended) < len(self.began):
            self.ended.append(time.perf_counter())
        return super().agree(signal)

    @property
    def seconds(self) -> float:
        """From the first step to the last, with the making of the batches between them."""
        return self.ended[-1] - self.began[0] if self.ended else 0.0


def lap(runner: Runner, *, root: Path | None = None, device: str | None = None) -> bool:
    """Train one epoch, or the rest of one that was interrupted; whether there was anything left to train."""
    watch, place = Stopwatch(), RunFolder(runner.folder)

    def pause(records: Sequence[Record]) -> None:
        note(place, records[-1]["epoch"], watch)
        raise Paused

    try:
        train(
            runner.config,
            runner.folder,
            data_root=root,
            device=device,
            each_epoch=pause,
            progress=False,
            ranks=watch,
        )
    except Paused:
        return True
    except Interrupted:
        note(place, runner.epochs, watch)
        raise
    return False


def note(place: RunFolder, epoch: int, watch: Stopwatch) -> None:
    line = {"at": round(time.time(), 3), "event": EVENT, "epoch": epoch}
    line |= {"steps": len(watch.ended), "training": round(watch.seconds, 4)}
    with place.timing.open("a") as file:
        file.write(json.dumps(line) + "\n")


def race(
    runners: Sequence[Runner],
    *,
    root: Path | None = None,
    device: str | None = None,
    each: Callable[[Runner], None] = lambda runner: None,
) -> None:
    """Train all to their ends, an epoch of each in turn, in an order that changes; those behind go first.

    `each` is called after every epoch.
    """
    left = list(runners)
    with caught_signals() as requests:
        while left:
            done = {runner.folder: runner.epochs for runner in left}
            behind = [runner for runner in left if done[runner.folder] == min(done.values())]
            for runner in random.Random(min(done.values())).sample(behind, len(behind)):
                if lap(runner, root=root, device=device):
                    each(runner)
                else:
                    left.remove(runner)
                requests.check()
