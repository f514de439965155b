"""A training step beside the same method's step by others.

In every repeat all who have a method make one step of it, one right after the other, in an order that
changes, so that what else the machine does falls on all of them; a ratio is the median of the repeats' own
ratios. The others work in a process of their own (`atlas.bench.apart`), which has none of our settings but
that threads wait without spinning.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn

from atlas import models
from atlas.bench.apart import ApartError
from atlas.bench.attack import NOT_INSTALLED, OURS
from atlas.bench.cases import Case, case
from atlas.bench.quiet import quiet
from atlas.bench.step import CLASSES, THREAT, WARM_UP, Settings, pairs, random_batch, seconds_of
from atlas.bench.trainers import TRAINERS, Task
from atlas.data import Batch
from atlas.errors import UsageError

MATCHED = ("jac", "adv-1", "adv-10", "trades-1", "trades-10", "atlas-1", "atlas-10")
"""What is measured unless told otherwise."""

PLAIN = f"{OURS}, plain"
"""With the settings that training has by itself."""

Seconds = Callable[[str, str], float]
"""Those of one step: of the method's label and the trainer's name."""


@dataclass
class Side:
    """Somebody who trains by a method, with the seconds of each repeat."""

    name: str
    note: str = ""
    seconds: list[float] = field(default_factory=list)
    error: str | None = None
    """Why there are no more."""

    @property
    def absent(self) -> bool:
        return self.error == NOT_INSTALLED


@dataclass(frozen=True)
class Match:
    """A method and all who have it, ourselves first."""

    case: Case
    sides: list[Side]


def match(label: str, settings: Settings | None = None) -> Match:
    """The match of a label such as `atlas-10`; of a library that is not installed, that is the error.

    Ours is the step with these settings; if there are any, the plain one is there too.
    """
    found = case(label)
    theirs = TRAINERS.get(found.name)
    if theirs is None:
        raise UsageError(f"nobody else has the method {found.name!r}; choose from {', '.join(TRAINERS)}")
    others = [Side(t.name, t.note(found.steps), error=None if t.installed else NOT_INSTALLED) for t in theirs]
    ours = [Side(OURS, in_words(settings)), Side(PLAIN)] if settings else [Side(OURS)]
    return Match(found, [*ours, *others])


def in_words(settings: Settings) -> str:
    """Such as: precision craft, channels_last True."""
    return ", ".join(f"{key.removeprefix('training.')} {value}" for key, value in settings.items())


def steps(name: str, size: int, shape: tuple[int, ...], device: str) -> Steps:
    """Those of the model of this name on our batch: all that another process needs to know."""
    return Steps(models.build(name, shape=shape).to(device), random_batch(size, shape, device))


class Steps:
    """The steps of other trainers on one batch, made when they are first asked for, and timed."""

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        # One copy for all of them: the weights hardly move, and what a library hangs into it is not ours.
        self.model, self.batch = copy.deepcopy(model), batch
        self.made: dict[tuple[str, str], Callable[[], None]] = {}

    def __call__(self, label: str, who: str) -> float:
        with quiet():
            step = self.made.get((label, who)) or self._make(label, who)
            return seconds_of(step, time.perf_counter, self.batch.x.device)

    def _make(self, label: str, who: str) -> Callable[[], None]:
        found = case(label)
        trainer = next(t for t in TRAINERS[found.name] if t.name == who)
        task = Task(self.model, self.batch.x, self.batch.y, THREAT.eps, found.steps, CLASSES)
        return self.made.setdefault((label, who), trainer.make(task))


def play(
    matches: Sequence[Match],
    model: nn.Module,
    batch: Batch,
    repeats: int,
    theirs: Seconds,
    *,
    clock: Callable[[], float] = time.perf_counter,
    each: Callable[[], None] = lambda: None,
    settings: Settings | None = None,
) -> None:
    """Let all sides of all matches make `repeats` steps.

    One that raises has its error noted and is left out from then on. `each` is called after every turn, also
    where somebody is left out.
    """
    cases = [found.case for found in matches]
    plain = pairs(model, cases, batch) if settings else []
    ours = {(pair.case.label, OURS): pair.step for pair in pairs(model, cases, batch, settings)}
    ours |= {(pair.case.label, PLAIN): pair.step for pair in plain}

    def turn(label: str, who: str) -> float:
        step = ours.get((label, who))
        return seconds_of(step, clock, batch.x.device) if step else theirs(label, who)

    order = random.Random(0)
    for repeat in range(-WARM_UP, repeats):
        for found in order.sample(matches, len(matches)):
            for side in order.sample(found.sides, len(found.sides)):
                taken = _turn(side, found.case.label, turn)
                if repeat >= 0 and taken is not None:
                    side.seconds.append(taken)
                each()


def _turn(side: Side, label: str, turn: Seconds) -> float | None:
    if side.error is not None:
        return None
    try:
        return turn(label, side.name)
    except ApartError as error:
        side.error = str(error)
        return None
    except Exception as error:  # whatever a library raises, the others go on
        side.error = f"{type(error).__name__}: {error}"
        return None
