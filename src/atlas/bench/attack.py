"""An attack beside the same attack of other libraries: seconds, and what each of them leaves standing.

In every repeat all contestants of an attack run one after the other, in an order that changes, so that what
else the machine does falls on all of them; a ratio is the median of the repeats' own ratios. What they bring
back is judged in one way for all. Peers may work in a process of their own (`atlas.bench.apart`), which has
none of our settings but that threads wait without spinning.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from atlas.attacks import Attack, frozen
from atlas.attacks.arranged import arranged
from atlas.attacks.lanes import ask
from atlas.bench.apart import ApartError
from atlas.bench.attack_cases import AttackCase
from atlas.bench.peers import PEERS, Job, Peer
from atlas.bench.quiet import quiet
from atlas.evaluation.course import Subject
from atlas.evaluation.plan import Plan
from atlas.machine import wait_for
from atlas.threat import Linf

OURS = "ours"
NOT_INSTALLED = "not installed"

Run = Callable[[Job, Sequence[Attack]], Tensor | None]
"""x_adv of a job and an attack, or a chain of them; None of what is no attack."""


class Turn(NamedTuple):
    """What came of one run."""

    seconds: float
    verdict: tuple[int, int] | None
    """What it left standing, and how many of its points did not count; see `judge`."""


@dataclass
class Entry:
    """A contestant and its record, with a number for each repeat that it finished."""

    name: str
    run: Run
    note: str = ""
    apart: bool = False
    """Whether it belongs into a process of its own."""
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
    return Entry(peer.name, lambda job, attacks: peer.run(job, *attacks), peer.note, apart=True, error=error)


class Peers:
    """The peers' runs of a job, by the attack's case and the peer's name: all that another process needs."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, case: AttackCase, name: str, seed: int) -> Turn:
        peer = next(peer for peer in PEERS[case.name] if peer.name == name)
        with frozen(self.job.model, fold=False), quiet():
            return timed(replace(self.job, seed=seed), case, lambda job, attacks: peer.run(job, *attacks))


def ours(job: Job, attacks: Sequence[Attack], dtype: str) -> Tensor:
    """The attacks as an evaluation runs them, without its files, its display and its honesty checks."""
    with frozen(job.model), arranged(job.model, job.images.pixels(slice(0, 1))):
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
    theirs: Callable[[AttackCase, str, int], Turn] | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[AttackCase, Entry], None] = lambda case, entry: None,
    after: Callable[[AttackCase, Entry], None] = lambda case, entry: None,
) -> None:
    """Let all contestants run `repeats` times, each time from another seed and in another order.

    `theirs` is `Peers` in another process; without it all run in this one. A contestant that raises has its
    error noted and is left out from then on. `before` and `after` are called around every run, also where it
    is left out. The global random states are set.
    """

    def run(case: AttackCase, entry: Entry, seed: int) -> Turn:
        if theirs and entry.apart:
            return theirs(case, entry.name, seed)
        return timed(replace(job, seed=seed), case, entry.run, clock)

    order = random.Random(0)
    with frozen(job.model, fold=False), quiet():
        _warm_up(contests, run)
        for repeat in range(repeats):
            for each in order.sample(contests, len(contests)):
                for entry in order.sample(each.entries, len(each.entries)):
                    before(each.case, entry)
                    if entry.error is None:
                        _note(entry, partial(run, each.case, entry, repeat))
                    after(each.case, entry)


def _warm_up(contests: Sequence[Contest], run: Callable[[AttackCase, Entry, int], Turn]) -> None:
    """One step of everything, not counted: it imports the libraries. What fails here will fail again."""
    for each in contests:
        for entry in each.entries:
            if not entry.absent:
                with suppress(Exception):
                    run(replace(each.case, attacks=each.case.shortest()), entry, 0)


def timed(job: Job, case: AttackCase, run: Run, clock: Callable[[], float] = time.perf_counter) -> Turn:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(job.seed)
    wait_for(job.x.device)
    began = clock()
    x_adv = run(job, case.attacks)
    wait_for(job.x.device)
    return Turn(clock() - began, None if x_adv is None else judge(job, x_adv))


def _note(entry: Entry, run: Callable[[], Turn]) -> None:
    try:
        seconds, verdict = run()
    except ApartError as error:
        entry.error = str(error)
        return
    except Exception as error:  # whatever a library raises, the others go on
        entry.error = f"{type(error).__name__}: {error}"
        return
    entry.seconds.append(seconds)
    if verdict is not None:
        entry.robust.append(verdict[0])
        entry.outside.append(verdict[1])
