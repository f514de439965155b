"""Which trial a worker does next, so that each slot is done once, whoever dies."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from optuna import Study, Trial
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from atlas.errors import LockError
from atlas.files import in_use, locked
from atlas.sweeps.space import Point, Space
from atlas.sweeps.storage import BEAT_SECONDS, GRACE_SECONDS, identity, own_url, waited_for

FOLDER = "folder"
"""The identity of the folder in which a trial's worker works."""


RELEASED = "released"
"""Given back by a worker that was told to stop."""


@dataclass(frozen=True)
class Claim:
    """A trial that is ours to do, and its slot."""

    trial: Trial
    slot: int
    deaths: int
    """Workers that died at it: some trials kill theirs, by the memory they want, say."""


@dataclass(frozen=True)
class Queue:
    """The trials of a study, as seen by one worker."""

    study: Study
    storage: RDBStorage
    space: Space
    folder: Path
    total: int

    def trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    @contextmanager
    def next(self) -> Iterator[Claim | None]:
        """A trial to do, held while the context lasts; None where none is left to begin or take up."""
        with ExitStack() as held:
            with waited_for(self.folder):
                self._requeue_lost()
                claim = self._ask(held)
            if claim is not None:
                held.enter_context(self._beating(claim.trial))
            yield claim

    def release(self, trial: Trial) -> None:
        """Give a trial back, for whoever comes next. If the storage fails too, the next worker finds out."""
        with suppress(SQLAlchemyError, StorageInternalError):
            with suppress(UpdateFinishedTrialError):
                trial.set_user_attr(RELEASED, True)
            self._fail(trial.number)

    def unfinished(self) -> tuple[list[int], list[int]]:
        """The slots without a result: those that a live worker is at, and those that nobody is at."""
        busy, lost = list[int](), list[int]()
        for slot, trial in newest(self.trials()).items():
            if trial.state != TrialState.RUNNING:
                lost += [] if trial.state.is_finished() and trial.state != TrialState.FAIL else [slot]
            elif FOLDER not in trial.user_attrs or self._is_orphan(trial, slot):
                lost.append(slot)
            else:
                busy.append(slot)
        return busy, lost

    # --- within the folder's lock ---

    def _ask(self, held: ExitStack) -> Claim | None:
        known = newest(self.trials())
        waiting = any(trial.state == TrialState.WAITING for trial in known.values())
        if not waiting and len(known) >= self.total:
            return None
        where = identity(self.folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # heartbeats outside `optimize`: ours are below
            trial = self.study.ask(self.space)
        try:
            trial.set_user_attr(FOLDER, where)
            return self._claimed(trial, held)
        except Exception:  # otherwise it would count as begun, and nobody would do it
            self.release(trial)
            raise

    def _claimed(self, trial: Trial, held: ExitStack) -> Claim | None:
        """The trial with its slot, if that is ours to do; else another."""
        trials = self.trials()
        frozen = next(other for other in trials if other.number == trial.number)
        slot = slot_of(frozen, trials)
        if slot >= self.total or newest(trials)[slot].number != trial.number:
            # A worker that shares no folder with us asked at the same time.
            trial.set_user_attr(SURPLUS, True)
            self._fail(trial.number)
            return self._ask(held)
        try:
            held.enter_context(locked(self._lock(slot)))
        except LockError:  # its worker gave no sign of life for long, but lives; it is looked after later
            return self._ask(held)
        lost = [t for t in trials if t.state == TrialState.FAIL and slot_of(t, trials) == slot]
        deaths = sum(not {RELEASED, SURPLUS} & set(t.user_attrs) for t in lost)
        return Claim(trial, slot, deaths)

    def _requeue_lost(self) -> None:
        """Find trials whose worker has died, and put what was lost back into the queue."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            optuna.storages.fail_stale_trials(self.study)
        trials = self.trials()
        for slot, trial in newest(trials).items():
            if trial.state == TrialState.RUNNING and self._is_orphan(trial, slot):
                self._fail(trial.number)
        for slot, trial in newest(self.trials()).items():
            if trial.state == TrialState.FAIL:
                self.study.enqueue_trial(trial.params, user_attrs={SLOT: slot})

    def _is_orphan(self, trial: FrozenTrial, slot: int) -> bool:
        if trial.user_attrs.get(FOLDER) == identity(self.folder):
            return not in_use(self._lock(slot))
        if FOLDER not in trial.user_attrs and self.storage.url == own_url(self.folder):
            return True  # trials are asked for under the folder's lock, which is ours now: its worker died
        begun = trial.datetime_start
        old = begun is not None and datetime.now() - begun > timedelta(seconds=GRACE_SECONDS)
        return FOLDER not in trial.user_attrs and old  # died within its first moment

    def _lock(self, slot: int) -> Path:
        return self.folder / "claims" / f"{slot + 1:03d}"

    def _fail(self, number: int) -> None:
        with suppress(UpdateFinishedTrialError, ValueError):  # somebody else has seen to it
            self.study.tell(number, state=TrialState.FAIL)

    # --- signs of life ---

    @contextmanager
    def _beating(self, trial: Trial) -> Iterator[None]:
        """Tell workers of other folders that this trial is being done."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT_SECONDS):
                with suppress(Exception):  # a server that is away for a while: the next beat will do
                    self.storage.record_heartbeat(trial._trial_id)

        self.storage.record_heartbeat(trial._trial_id)
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=BEAT_SECONDS)


SLOT = "slot"
"""The slot that a trial takes over from one that was lost."""
SURPLUS = "surplus"
OUTCOME = "outcome"
"""What came out of the trial; see `atlas.sweeps.trial`."""


def slot_of(trial: FrozenTrial, trials: Iterable[FrozenTrial]) -> int:
    """The slot of one of the trials."""
    if SLOT in trial.user_attrs:
        return int(trial.user_attrs[SLOT])
    return sum(_has_own(other) and other.number < trial.number for other in trials)


def newest(trials: Sequence[FrozenTrial]) -> dict[int, FrozenTrial]:
    """For each slot that is taken, the trial that speaks for it: the last, unless one before it has ended."""
    found: dict[int, FrozenTrial] = {}
    for trial in sorted(trials, key=lambda t: t.number):
        if SURPLUS in trial.user_attrs:
            continue
        slot = slot_of(trial, trials)
        if slot not in found or found[slot].state == TrialState.FAIL:
            found[slot] = trial
    return found


def _has_own(trial: FrozenTrial) -> bool:
    return SLOT not in trial.user_attrs and SURPLUS not in trial.user_attrs


STARTUP = 5
"""Trials by chance before TPE proposes; Optuna's own ten would be most of a short search."""


class GridSampler(BaseSampler):
    """The point of a trial's slot. Optuna's own draws points by chance, and two workers may draw the same."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        slot = slot_of(trial, study.get_trials(deepcopy=False))
        return self.points[slot % len(self.points)][param_name]  # beyond the last: a trial that is dropped


class SearchSampler(BaseSampler):
    """TPE with randomness by (seed, trial): no two workers draw the same, and a resumed search goes on so."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.inner: BaseSampler = TPESampler(seed=seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.inner = TPESampler(seed=(self.seed * 1_000_003 + trial.number) % 2**32, n_startup_trials=STARTUP)
        self.inner.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self.inner.after_trial(study, trial, state, values)
