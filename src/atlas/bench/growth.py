"""How the time of a step grows with the batch and with the width, alone and beside a busy process.

In every repeat each point is timed twice, one right after the other: with a second process that keeps a core
busy, and without.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from atlas import models
from atlas.bench.cases import Case
from atlas.bench.cost import growing
from atlas.bench.neighbour import Neighbour
from atlas.bench.step import CLASSES, WARM_UP, Settings, random_batch, seconds_of, trainer

BATCHES = (16, 32, 64, 128, 256, 512, 1024)
WIDTHS = ("wrn-16-1", "wrn-16-2", "wrn-16-4", "wrn-16-8")
GROWN = ("adv-1", "atlas-1")


@dataclass(frozen=True)
class Point:
    """A network, the shape of its images, and how many of them a step takes."""

    model: str
    shape: tuple[int, ...]
    batch: int


@dataclass
class Growth:
    """A method at a point, with the seconds of each repeat."""

    case: Case
    point: Point
    flops: int
    """Of the step's equation."""
    quiet: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


def growths(points: Sequence[Point], cases: Sequence[Case]) -> list[Growth]:
    """Every method at every point."""
    return [
        Growth(case, point, growing(point.model, case, point.shape, CLASSES).of(point.batch).flops)
        for case in cases
        for point in points
    ]


def steps(todo: Sequence[Growth], device: str, settings: Settings | None) -> list[Callable[[], None]]:
    """A step of each; points of one network and method share it."""
    networks = {
        (g.point.model, g.case.label): models.build(g.point.model, shape=g.point.shape).to(device)
        for g in todo
    }
    batches = [random_batch(g.point.batch, g.point.shape, device) for g in todo]
    return [
        partial(trainer(networks[g.point.model, g.case.label], g.case, batch, settings=settings).step, batch)
        for g, batch in zip(todo, batches, strict=True)
    ]


def grow(
    todo: Sequence[Growth],
    repeats: int,
    beside: Neighbour,
    device: str = "cpu",
    *,
    clock: Callable[[], float] = time.perf_counter,
    each: Callable[[], None] = lambda: None,
    settings: Settings | None = None,
) -> None:
    """Time every step `repeats` times in both ways, in an order that changes. `each` follows each pair."""
    work = list(zip(todo, steps(todo, device, settings), strict=True))
    order = random.Random(0)
    for repeat in range(-WARM_UP, repeats):
        for growth, step in order.sample(work, len(work)):
            for busy in (True, False) if repeat % 2 else (False, True):
                beside.work(busy)
                taken = seconds_of(step, clock, torch.device(device))
                if repeat >= 0:
                    (growth.busy if busy else growth.quiet).append(taken)
            beside.work(False)
            each()
