"""A training step over its bare passes, measured side by side.

In every repeat each method runs its step and its bare passes one right after the other, so that what
else the machine does falls on both; a ratio is the median of the repeats' own ratios.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from atlas.bench.cases import Case
from atlas.bench.passes import Bare
from atlas.config import build, overridden, table_of
from atlas.data import Batch
from atlas.errors import UsageError
from atlas.machine import wait_for
from atlas.rng import Rng
from atlas.threat import Linf
from atlas.training import Optimizer, Ranks, Schedule, Training
from atlas.training.settings import REGISTRIES
from atlas.training.trainer import Trainer

Settings = Mapping[str, Any]
"""Of training, by their dotted keys, as `atlas train --set` takes them: {"training.precision": "craft"}."""
CLASSES = 10
THREAT = Linf(8 / 255)
WARM_UP = 2
"""Rounds that are not counted: the first fills caches and momenta, and looks at the Jacobian."""
# Small enough that the weights stay where they are: no time depends on it.
OPTIMIZER = Optimizer(lr=1e-5, momentum=0.9)


@dataclass(frozen=True)
class Pair:
    """What is timed side by side: `fit`'s own step on a batch, and the bare passes."""

    case: Case
    step: Callable[[], None]
    bare: Callable[[], None] | None


@dataclass
class Timing:
    """The seconds of each repeat."""

    case: Case
    step: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    """Empty where the method has no equation to be held against."""


def pairs(
    model: nn.Module, cases: Sequence[Case], batch: Batch, settings: Settings | None = None
) -> list[Pair]:
    """A pair for each case, all of the same model and batch; the settings are those of the step.

    Where there are any, every step has a copy of the model: the order of its weights in memory may be one.
    """
    x, y = batch.x, batch.y
    rng = Rng.lanes(0, batch.ids)
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(weights, OPTIMIZER.lr, OPTIMIZER.momentum)
    x_adv, v = THREAT.random_start(x, rng), rng.sphere(CLASSES)
    bare = Bare(model, weights, optimizer, x, x_adv, y, v)
    return [
        Pair(
            case,
            partial(trainer(_own(model, settings), case, batch, settings=settings).step, batch),
            partial(case.equation.run, bare, case.steps) if case.equation else None,
        )
        for case in cases
    ]


def _own(model: nn.Module, settings: Settings | None) -> nn.Module:
    return copy.deepcopy(model) if settings else model


def trainer(
    model: nn.Module, case: Case, batch: Batch, ranks: Ranks = Ranks(), settings: Settings | None = None
) -> Trainer:
    """The trainer that `fit` runs, at the full eps from the first step, without files or display."""
    training = training_with(len(batch.y), settings or {})
    return Trainer.of_batch(model, batch, CLASSES, case.method, THREAT, training, ranks)


def training_with(batch_size: int, settings: Settings) -> Training:
    """Refuses a setting that is none of training's."""
    plain = Training(batch_size, optimizer=OPTIMIZER, schedule=Schedule(ramp_epochs=0))
    table = overridden({"training": table_of(plain, REGISTRIES)}, settings.items(), REGISTRIES)
    if set(table) != {"training"}:
        raise UsageError(f"got the settings {', '.join(settings)}; wanted some of training's: training.KEY")
    return build(Training, table["training"], REGISTRIES, "training")


def random_batch(size: int, shape: Sequence[int], device: torch.device | str = "cpu") -> Batch:
    """Images of noise with labels of chance."""
    ids = torch.arange(size, device=device)
    rng = Rng.lanes(0, ids)
    return Batch(ids, rng.fold("x").uniform(shape), rng.fold("y").bits(()).remainder(CLASSES))


def measure(
    model: nn.Module,
    cases: Sequence[Case],
    batch: Batch,
    repeats: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    each: Callable[[], None] = lambda: None,
    settings: Settings | None = None,
) -> list[Timing]:
    """Time all cases `repeats` times, in an order that changes from repeat to repeat.

    The step goes first in every other repeat, the bare passes in the rest. `each` is called after a case.
    """
    todo = [(pair, Timing(pair.case)) for pair in pairs(model, cases, batch, settings)]
    order = random.Random(0)
    for repeat in range(-WARM_UP, repeats):
        for pair, timing in order.sample(todo, len(todo)):
            both = [(pair.step, timing.step)] + ([(pair.bare, timing.bare)] if pair.bare else [])
            for run, seconds in both if repeat % 2 else reversed(both):
                taken = seconds_of(run, clock, batch.x.device)
                if repeat >= 0:
                    seconds.append(taken)
            each()
    return [timing for _, timing in todo]


def seconds_of(run: Callable[[], None], clock: Callable[[], float], device: torch.device) -> float:
    """Until the device is done."""
    wait_for(device)
    began = clock()
    run()
    wait_for(device)
    return clock() - began
