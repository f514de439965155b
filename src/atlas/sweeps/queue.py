"""The queue of a sweep: where its study is stored, and which trial a worker does next.

All trials are created when a sweep starts. A worker does the first waiting one whose lock, `claims/NNN`, is
free. A trial that is running while its lock is free has lost its worker, and is taken up by the next one. On
a server, workers may have no folder in common: there a trial is lost once it has had no heartbeat for long.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import optuna
from optuna import Study, Trial
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from atlas.config import differences
from atlas.errors import AtlasError, LockError, UsageError
from atlas.files import locked, require_empty_dir
from atlas.sweeps.study import Space, Sweep

ADDRESS = "postgresql://USER@HOST/DATABASE"
SCHEMES = ("postgresql", "postgres")
DATABASE, CLAIMS = "study.db", "claims"
OURS = (DATABASE, f"{DATABASE}-journal")
"""The files of a sweep that was interrupted before its first trial."""
DEFINITION, DEATHS = "sweep", "deaths"
"""Attributes of a study: what it sweeps; and of a trial: how many workers died at it."""
HEARTBEAT_SECONDS, GRACE_SECONDS = 60, 600
"""On a server: the interval of a worker's heartbeats, and after which time without one it counts as dead."""
LOCK_SECONDS = 120.0
"""How long to wait for another worker that reads or writes the sweep's files, which takes it a moment."""
PRUNE_AFTER_TRIALS, PRUNE_AFTER_EPOCHS = 4, 2
"""A trial is pruned only after so many others have ended, and so many epochs after the ramp."""
STARTUP = 5
"""Random trials before TPE proposes; Optuna's default of ten would be most of a short search."""

DB_ERRORS = (SQLAlchemyError, StorageInternalError)

optuna.logging.set_verbosity(optuna.logging.ERROR)


class StorageError(AtlasError):
    """The study's storage cannot be reached or refuses."""

    exit_code = 6


def check_url(url: str, *, hidden: bool) -> str:
    """The URL, if it is one of PostgreSQL without a password, or is `hidden` from other users."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"--storage must be {ADDRESS}: {error}") from None
    if parts.scheme not in SCHEMES:
        raise UsageError(
            f"--storage must be {ADDRESS}, got the scheme {parts.scheme!r}; omit it to use SQLite in the "
            "sweep's folder"
        )
    if _passwords(url) and not hidden:
        raise UsageError(
            "--storage must not hold a password, which everybody on this machine could read: set PGPASSWORD, "
            "use ~/.pgpass, or set ATLAS_STORAGE to the whole URL"
        )
    return url


def _passwords(url: str) -> set[str]:
    """The passwords in a URL, encoded and decoded."""
    parts = urlsplit(url)
    written = [parts.password, *parse_qs(parts.query).get("password", [])]
    return {form for word in written if word for form in (word, unquote(word))}


def open_storage(url: str | None, folder: Path) -> RDBStorage:
    """The storage at this URL, or the file `study.db` of the folder."""
    options: dict[str, Any]
    if url is None:
        address = f"sqlite:///{quote(str(folder))}/{DATABASE}"
        options = {"engine_kwargs": {"connect_args": {"timeout": 60}}}
    else:
        rest = url.partition("://")[2].replace("{", "%7B").replace("}", "%7D")  # Optuna formats the URL
        address = f"postgresql+psycopg://{rest}"
        options = {"engine_kwargs": {"pool_pre_ping": True}}
        options |= {"heartbeat_interval": HEARTBEAT_SECONDS, "grace_period": GRACE_SECONDS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        try:
            try:
                return RDBStorage(address, **options)
            except DB_ERRORS:  # two workers that create the tables at the same time
                time.sleep(2.0)
                return RDBStorage(address, **options)
        except ImportError as error:
            raise UsageError("PostgreSQL needs psycopg: pip install 'atlas-robust[sweep]'") from error


@contextmanager
def translate_db_errors(url: str | None) -> Iterator[None]:
    """Turn errors of the database into a `StorageError` of one line, without the password."""
    try:
        yield
    except DB_ERRORS as error:
        cause = getattr(error.__cause__, "orig", None) or getattr(error, "orig", None) or error
        text = " ".join(str(cause).split())
        for password in _passwords(url or ""):
            text = text.replace(password, "***")
        raise StorageError(
            f"the study's storage cannot be used: {text}; repair it, then run the same command again"
        ) from None


def wait_for_lock(folder: Path) -> ExitStack:
    """`locked`, after waiting for whoever has the lock."""
    deadline, held = time.monotonic() + LOCK_SECONDS, ExitStack()
    while True:
        try:
            held.enter_context(locked(folder))
            return held
        except LockError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class SweepSampler(TPESampler):
    """The sweep's points for its first trials, then TPE.

    Seeded by (seed, trial): no two workers draw the same, and a resumed search repeats its points.
    """

    def __init__(self, sweep: Sweep) -> None:
        super().__init__(seed=sweep.seed)
        self.seed, self.points = sweep.seed, sweep.points

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        super().__init__(seed=(self.seed * 1_000_003 + trial.number) % 2**32, n_startup_trials=STARTUP)
        super().before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        if trial.number < len(self.points):
            return {}
        return super().infer_relative_search_space(study, trial)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if trial.number < len(self.points):
            return self.points[trial.number][param_name]
        return super().sample_independent(study, trial, param_name, param_distribution)


@dataclass(frozen=True)
class Queue:
    """The trials of a study, as seen by one worker."""

    study: Study
    storage: RDBStorage
    space: Space
    folder: Path
    total: int

    @classmethod
    def join(cls, sweep: Sweep, folder: Path, url: str | None, total: int) -> Queue:
        """Create the study, or join it if it is the same; its name is the folder's."""
        if folder.is_dir() and not (folder / CLAIMS).is_dir():
            require_empty_dir(folder, OURS)
        with wait_for_lock(folder):
            storage = open_storage(url, folder)
            study = optuna.create_study(
                storage=storage,
                study_name=folder.resolve().name,
                direction="maximize",
                sampler=SweepSampler(sweep),
                # Its steps are epochs after the ramp.
                pruner=MedianPruner(PRUNE_AFTER_TRIALS, PRUNE_AFTER_EPOCHS) if sweep.prune else NopPruner(),
                load_if_exists=True,
            )
            wanted = sweep.definition()
            if DEFINITION not in study.user_attrs:
                study.set_user_attr(DEFINITION, wanted)
            if found := differences(study.user_attrs[DEFINITION], wanted):
                raise UsageError(
                    f"the study {study.study_name!r} sweeps something else: {'; '.join(found)}. Give the "
                    "same options to join it, or choose another --out for a new one."
                )
            while len(study.get_trials(deepcopy=False)) < total:
                study.enqueue_trial({})
        return cls(study, storage, sweep.space, folder, total)

    def trials(self) -> list[FrozenTrial]:
        """In the order of their numbers. Two workers that start at once may have created too many."""
        return self.study.get_trials(deepcopy=False)[: self.total]

    def unfinished(self) -> list[int]:
        """The numbers of the trials without a result."""
        return [trial.number for trial in self.trials() if not trial.state.is_finished()]

    @contextmanager
    def claim(self) -> Iterator[Trial | None]:
        """A trial to start or to resume, held while the context lasts; None if there is none."""
        for number in self.unfinished():
            with ExitStack() as held:
                if (trial := self._take(number, held)) is not None:
                    yield trial
                    return
        yield None

    def _take(self, number: int, held: ExitStack) -> Trial | None:
        """The trial, unless another worker has it."""
        try:
            held.enter_context(locked(self.folder / CLAIMS / f"{number + 1:03d}"))
            trial = self.trials()[number]
            if trial.state == TrialState.RUNNING:
                if not self._is_lost(trial):
                    return None
                deaths = trial.user_attrs.get(DEATHS, 0) + 1
                self.storage.set_trial_user_attr(trial._trial_id, DEATHS, deaths)
                self.storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
            held.enter_context(self._heartbeats(trial._trial_id))
            if not self.storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING):
                return None
        except (LockError, UpdateFinishedTrialError):
            return None
        # As `Study.ask` does it, which takes any trial.
        self.study._thread_local.cached_all_trials = None
        claimed = Trial(self.study, trial._trial_id)
        for key, distribution in self.space.items():
            claimed._suggest(key, distribution)
        return claimed

    def release(self, trial: Trial) -> None:
        """Return a trial to the queue. If the storage fails too, the next worker finds out."""
        with suppress(*DB_ERRORS, UpdateFinishedTrialError):
            self.storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)

    def _is_lost(self, trial: FrozenTrial) -> bool:
        """Whether the worker of a running trial has died; the trial's lock is ours."""
        on_server = self.storage.get_heartbeat_interval() is not None
        return not on_server or trial._trial_id in self.storage._get_stale_trial_ids(self.study._study_id)

    @contextmanager
    def _heartbeats(self, trial_id: int) -> Iterator[None]:
        """Show workers of other folders that this trial is being done."""
        if (interval := self.storage.get_heartbeat_interval()) is None:
            yield
            return
        over = threading.Event()

        def beat() -> None:
            while not over.wait(interval):
                with suppress(Exception):  # a server that is away for a while: the next beat will do
                    self.storage.record_heartbeat(trial_id)

        self.storage.record_heartbeat(trial_id)
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=HEARTBEAT_SECONDS)
