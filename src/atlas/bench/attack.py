"""An attack beside the same attack of other libraries: seconds, and what each of them leaves standing.

In every repeat all contestants of an attack run one after the other, in an order that changes, so that what
else the machine does falls on all of them; a ratio is the median of the repeats' own ratios. What they bring
back is judged in one way for all.
"""

from __future__ import annotations

import logging
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from io import StringIO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from atlas.attacks import Attack, frozen
from atlas.attacks.lanes import ask
from atlas.bench.attack_cases import AttackCase
from atlas.bench.machine import wait_for
from atlas.bench.peers import PEERS, Job, Peer
from atlas.evaluation.course import Subject
from atlas.evaluation.plan import Plan
from atlas.threat import Linf

OURS = "ours"
NOT_INSTALLED = "not installed"
WARM_UP_IMAGES = 64


@dataclass
class Entry:
    """A contestant and its record, with a number for each repeat that it finished."""

    name: str
    run: Callable[[Job, Sequence[Attack]], Tensor | None]
    """x_adv, or None of what is no attack."""
    note: str = ""
    seconds: list[float] = field(default_factory=list)
    robust: list[int] = field(default_factory=list)
    """How many images it left standing."""
    outside: list[int] = field(default_factory=list)
    """How many of its points were not in ball and box, and so did not count."""
    error: str | None = None
    """Why there are no more."""

    @property
    def absent(self) -> bool:
        """Whether it never runs."""
        return self.error == NOT_INSTALLED


@dataclass(frozen=True)
class Contest:
    """An attack and all who run it."""

    case: AttackCase
    entries: list[Entry]


def contest(case: AttackCase) -> Contest:
    """Ours, the bare passes, and every peer; of one that is not installed, that is the error."""
    found = [
        Entry(OURS, lambda job, attacks: ours(job, attacks, "float32")),
        Entry(
            f"{OURS}, bfloat16", lambda job, attacks: ours(job, attacks, "bfloat16"), "verified in float32"
        ),
        Entry("bare passes", bare, "the whole budget on every image"),
    ]
    if any(getattr(attack, "restarts", 1) > 1 for attack in case.attacks):
        found.insert(1, Entry(f"{OURS}, one restart", _one_restart, "of as many as the others have"))
    return Contest(case, [*found, *map(_entry, PEERS[case.name])])


def _one_restart(job: Job, attacks: Sequence[Attack]) -> Tensor:
    return ours(job, [replace(attack, restarts=1) for attack in attacks], "float32")  # type: ignore[type-var]


def _entry(peer: Peer) -> Entry:
    error = None if peer.installed else NOT_INSTALLED
    return Entry(peer.name, lambda job, attacks: peer.run(job, *attacks), peer.note, error=error)


def ours(job: Job, attacks: Sequence[Attack], dtype: str) -> Tensor:
    """The attacks as an evaluation runs them, without its files, its display and its honesty checks."""
    with frozen(job.model):
        plan = Plan(Linf(job.eps), {}, seed=job.seed, attack_dtype=dtype)
        subject = Subject.of(job.model, job.images, plan, job.batch_size)
        x_adv, left = subject.x.clone(), torch.ones(len(job.y), dtype=torch.bool)
        for attack in attacks:
            engine = subject.under(attack, left)
            while not engine.finished:
                engine.step()
            outcome = engine.outcome()
            x_adv[left.to(x_adv.device)] = outcome.x_adv
            left = left.masked_scatter(left, outcome.robust.cpu())
        return x_adv


def bare(job: Job, attacks: Sequence[Attack]) -> None:
    """The passes that the attacks' steps take if no image leaves early, with nothing around them."""
    for attack in attacks:
        steps = attack.attempts(job.images.num_classes) * attack.steps
        for x, y in job.batches():
            for _ in range(steps):
                _passes(job, attack, x, y)


def _passes(job: Job, attack: Attack, x: Tensor, y: Tensor) -> None:
    if attack.white_box:
        x_adv = x.detach().requires_grad_()
        torch.autograd.grad(F.cross_entropy(job.model(x_adv), y, reduction="sum"), x_adv)
    with torch.no_grad():
        for _ in range(attack.forwards - attack.white_box):
            job.model(x)


def judge(job: Job, x_adv: Tensor) -> tuple[int, int]:
    """How many images are right and not fooled, and how many points are not in ball and box.

    A separate float32 pass decides. A point fools if the model is wrong there, and if it lies in the ball of
    radius eps and in [0, 1], both to 1e-6.
    """
    if x_adv.shape != job.x.shape:
        raise ValueError(f"got points of shape {list(x_adv.shape)}; wanted {list(job.x.shape)}")
    inside = Linf(job.eps).contains(x_adv, job.x)
    right = ask(job.model, job.x, job.batch_size).argmax(1) == job.y
    fooled = inside & (ask(job.model, x_adv, job.batch_size).argmax(1) != job.y)
    return int((right & ~fooled).sum()), int((~inside).sum())


def compete(
    job: Job,
    contests: Sequence[Contest],
    repeats: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[AttackCase, Entry], None] = lambda case, entry: None,
    after: Callable[[AttackCase, Entry], None] = lambda case, entry: None,
) -> None:
    """Let all contestants run `repeats` times, each time from another seed and in another order.

    One that raises has its error noted and is left out from then on. `before` and `after` are called around
    every run, also where it is left out. The global random states are set.
    """
    order = random.Random(0)
    with frozen(job.model, fold=False), _quiet():
        _warm_up(job, contests)
        for repeat in range(repeats):
            for each in order.sample(contests, len(contests)):
                for entry in order.sample(each.entries, len(each.entries)):
                    before(each.case, entry)
                    if entry.error is None:
                        _run(replace(job, seed=repeat), each.case, entry, clock)
                    after(each.case, entry)


def _warm_up(job: Job, contests: Sequence[Contest]) -> None:
    """One step of everything, not counted: it imports the libraries. What fails here will fail again."""
    few = slice(WARM_UP_IMAGES)
    small = replace(job, images=job.images.subset(few), x=job.x[few], y=job.y[few])
    for each in contests:
        for entry in each.entries:
            with suppress(Exception):
                entry.run(small, each.case.shortest())


def _run(job: Job, case: AttackCase, entry: Entry, clock: Callable[[], float]) -> None:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(job.seed)
    wait_for(job.x.device)
    began = clock()
    try:
        x_adv = entry.run(job, case.attacks)
        wait_for(job.x.device)
        seconds = clock() - began
        verdict = None if x_adv is None else judge(job, x_adv)
    except Exception as error:  # whatever a library raises, the others go on
        entry.error = f"{type(error).__name__}: {error}"
        return
    entry.seconds.append(seconds)
    if verdict is not None:
        entry.robust.append(verdict[0])
        entry.outside.append(verdict[1])


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the libraries print, warn and log."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(StringIO()), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(level)
