"""One step by several processes over the same step by one, measured in turns by the same processes.

The first process makes the step alone, with its threads and with as many as all have together, while the
others wait for it without computing; then all make it together, each its share of the batch. In every repeat
the settings follow each other in another order, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from atlas.bench.cases import Case
from atlas.bench.step import WARM_UP, random_batch, trainer
from atlas.data import Batch
from atlas.training import Ranks
from atlas.training.team import Team
from atlas.training.trainer import Trainer

ALONE, SHARE, THREADS, TOGETHER = "alone", "share", "threads", "together"
"""One process with its threads; the same on its share of the batch; one with all threads; all processes."""
SIZES = tuple(1024 * 4**power for power in range(9))
"""Bytes of gradients that are summed: 1 KB to 64 MB."""


@dataclass
class Scaling:
    """Seconds of each repeat, by setting; and of what ranks did in the steps that they made together."""

    case: Case
    seconds: dict[str, list[float]] = field(default_factory=dict)
    computing: list[list[float]] = field(default_factory=list)
    """By rank: all but the messages."""
    messages: list[float] = field(default_factory=list)
    """Of the rank that spent least on them, because it came last and waited for nobody."""


@dataclass(frozen=True)
class Timed(Team):
    """Notes how long each message takes, waiting for the others included."""

    spent: list[float] = field(default_factory=list)

    @contextmanager
    def noted(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.spent.append(time.perf_counter() - began)

    def mean_gradients(self, model: nn.Module, weight: float) -> None:
        with self.noted():
            super().mean_gradients(model, weight)

    def mean_buffers(self, model: nn.Module, weight: float) -> None:
        with self.noted():
            super().mean_buffers(model, weight)

    def mean(self, values: Sequence[float], weight: float) -> Sequence[float]:
        with self.noted():
            return super().mean(values, weight)

    def agree(self, signal: int | None) -> int | None:
        with self.noted():
            return super().agree(signal)


class Contest:
    """The settings of one method on one model, ready to run on every rank."""

    def __init__(self, make: Callable[[], nn.Module], case: Case, batch: Batch, team: Timed, threads: int):
        part = team.share(len(batch.ids)).part
        share = Batch(*(column[part] for column in batch))
        alone = make()
        self.team, self.found = team, Scaling(case)
        self.settings: dict[str, tuple[Trainer, Batch, int]] = {
            ALONE: (trainer(alone, case, batch), batch, threads),
            SHARE: (trainer(alone, case, share), share, threads),
            THREADS: (trainer(alone, case, batch), batch, threads * team.size),
            TOGETHER: (trainer(make(), case, batch, team), batch, threads),
        }

    def run(self, setting: str, counted: bool) -> None:
        """Let those whose turn it is make a step, and take down what it took."""
        at_work = setting == TOGETHER or self.team.first
        mine, messages = self._step(setting) if at_work else (0.0, 0.0)
        everybody = gathered(self.team, [mine, messages])
        if counted:
            self._note(setting, everybody)

    def _step(self, setting: str) -> tuple[float, float]:
        """Seconds of a step as `fit` makes it, with the look for signals after it; and of its messages."""
        learner, batch, threads = self.settings[setting]
        torch.set_num_threads(threads)
        self.team.spent.clear()
        began = time.perf_counter()
        learner.step(batch)
        learner.check_requests()
        return time.perf_counter() - began, sum(self.team.spent)

    def _note(self, setting: str, everybody: Sequence[Sequence[float]]) -> None:
        self.found.seconds.setdefault(setting, []).append(max(total for total, _ in everybody))
        if setting == TOGETHER:
            self.found.computing.append([total - messages for total, messages in everybody])
            self.found.messages.append(min(messages for _, messages in everybody))


def gathered(ranks: Ranks, numbers: Sequence[float]) -> list[list[float]]:
    """The numbers of every rank, by rank; all wait for all."""
    places = [0.0] * (ranks.size * len(numbers))
    places[ranks.rank * len(numbers) : (ranks.rank + 1) * len(numbers)] = numbers
    found = ranks.mean(places, 1.0)
    return [list(found[i : i + len(numbers)]) for i in range(0, len(found), len(numbers))]


def measure_scaling(
    make: Callable[[], nn.Module],
    cases: Sequence[Case],
    size: int,
    shape: Sequence[int],
    repeats: int,
    ranks: Ranks,
    threads: int,
    each: Callable[[], None] = lambda: None,
) -> list[Scaling]:
    """Time all settings of all cases `repeats` times on batches of `size` images; the same on every rank.

    `make` has to make the same model on every rank. `each` is called after a case.
    """
    team, batch = Timed(ranks.rank, ranks.size), random_batch(size, shape)
    contests = [Contest(make, case, batch, team, threads) for case in cases]
    order = random.Random(0)  # the same on all ranks: they have to meet
    for repeat in range(-WARM_UP, repeats):
        for contest in order.sample(contests, len(contests)):
            for setting in order.sample(list(contest.settings), len(contest.settings)):
                contest.run(setting, counted=repeat >= 0)
            each()
    return [contest.found for contest in contests]


def measure_link(
    ranks: Ranks, repeats: int, threads: int, sizes: Sequence[int] = SIZES
) -> dict[int, list[float]]:
    """Seconds that the mean of gradients of each size takes all ranks, `repeats` times, in changing order."""
    torch.set_num_threads(threads)
    models = {size: _with_gradients(size) for size in sizes}
    order, seconds = random.Random(0), {size: list[float]() for size in sizes}
    for repeat in range(-WARM_UP, repeats):
        for size in order.sample(list(sizes), len(sizes)):
            ranks.wait()
            began = time.perf_counter()
            ranks.mean_gradients(models[size], 1 / ranks.size)
            everybody = gathered(ranks, [time.perf_counter() - began])
            if repeat >= 0:
                seconds[size].append(max(each[0] for each in everybody))
    return seconds


def _with_gradients(size: int) -> nn.Module:
    """A model whose only weights have gradients of `size` bytes."""
    weights = nn.Parameter(torch.zeros(size // 4))
    weights.grad = torch.ones_like(weights)
    return nn.ParameterList([weights])
