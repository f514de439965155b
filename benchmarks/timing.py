"""The one timer: contestants run one right after the other, in an order that changes.

Whatever else the machine does then falls on all of them alike, and a ratio is the median of the ratios within
the repeats. Each order is followed by its reverse: over two repeats, all have run before and after all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from atlas.machine import wait_for
from atlas.terminal import Terminal, share_bars
from benchmarks.tables import over

WARM_UP = 2
"""Repeats that are not counted: the first fills caches and momenta, and probes the Jacobian."""
OURS = "ours"
NOT_INSTALLED = "not installed"


class WorkerError(Exception):
    """What was raised in a worker process, with the error's type, or how the process ended."""


@dataclass
class Contestant:
    """One of several ways to do the same work, with the seconds and results of each repeat."""

    name: str
    run: Callable[[int], tuple[float, Any]]
    """Does the work in the given repeat, negative in a warm-up; returns its seconds and its result."""
    note: str = ""
    cost: float = 1.0
    """Of one run, for the progress bar."""
    error: str | None = None
    """Why it is no longer timed."""
    seconds: list[float] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    def record(self, ours: Contestant) -> dict[str, Any]:
        """As plain data, with the quartiles of its seconds over ours."""
        about = {"who": self.name, "note": self.note, "seconds": self.seconds}
        return {**about, "over_ours": over(self.seconds, ours.seconds), "error": self.error}


def seconds_of(work: Callable[[], Any], device: torch.device | str = "cpu") -> tuple[float, Any]:
    """The time of one run, until the device has finished, and what it returned."""
    wait_for(torch.device(device))
    began = time.perf_counter()
    result = work()
    wait_for(torch.device(device))
    return time.perf_counter() - began, result


def timed(
    name: str, work: Callable[[], Any], device: torch.device | str = "cpu", note: str = ""
) -> Contestant:
    return Contestant(name, lambda repeat: seconds_of(work, device), note)


def interleave(
    groups: Mapping[str, Sequence[Contestant]],
    repeats: int,
    title: str | None = None,
    *,
    warm_up: int = WARM_UP,
    keep_going: bool = False,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Let every contestant of every group run `repeats` times, after `warm_up` runs that are not counted.

    With `keep_going`, a contestant that raises in a counted run has its error recorded, and the others go on;
    errors in a warm-up are ignored, because they will come again. `after` is called after every counted run.
    `title` is that of the progress bar; None shows none.
    """
    rng, orders = random.Random(0), dict[str, list[Contestant]]()
    total = repeats * sum(c.cost for group in groups.values() for c in group if c.error is None)
    with share_bars(Terminal(stderr=True, quiet=title is None)) as bar:
        task = bar.add_task(f"{title}: warm-up", total=total)
        for repeat in range(-warm_up, repeats):
            for name in rng.sample(list(groups), len(groups)):
                shuffled = rng.sample(groups[name], len(groups[name]))
                orders[name] = orders[name][::-1] if repeat % 2 and name in orders else shuffled
                for contestant in orders[name]:
                    if contestant.error is not None:
                        continue
                    bar.update(task, description=f"{title}: {name}, {contestant.name}")
                    try:
                        seconds, result = contestant.run(repeat)
                    except Exception as error:
                        if not keep_going:
                            raise
                        kind = "" if isinstance(error, WorkerError) else f"{type(error).__name__}: "
                        contestant.error = f"{kind}{error}" if repeat >= 0 else None
                    else:
                        if repeat >= 0:
                            contestant.seconds.append(seconds)
                            contestant.results.append(result)
                    if repeat >= 0:
                        bar.advance(task, contestant.cost)
                        after()
