"""The queue of a sweep: where its study is stored, and which trial a worker does next.

A sweep has as many slots as trials. Whichever worker dies, each slot is done once: a trial that was lost is
queued again for the same slot.
"""

from __future__ import annotations

import threading
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import optuna
from optuna import Study, Trial
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from atlas.errors import AtlasError, LockError, UsageError
from atlas.files import in_use, locked, require_empty_dir, write_atomic

Space = dict[str, BaseDistribution]
"""What a setting may be, by its dotted key."""
ADDRESS = "postgresql://USER@HOST/DATABASE"
SCHEMES = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
BEAT_SECONDS, GRACE_SECONDS = 60, 600
"""The interval of a worker's heartbeat, and after which time without one a worker of another folder counts as
dead. Within one folder its lock shows it at once."""
DATABASE, IDENTITY = "study.db", "folder.id"
"""A sweep's folder has at least one of them."""
LOCK_SECONDS = 120.0
"""How long to wait for another worker that reads or writes the sweep's files, which takes it a moment."""

FOLDER, SLOT, RELEASED, SURPLUS, OUTCOME = "folder", "slot", "released", "surplus", "outcome"
"""Attributes of a trial: the identity of its worker's folder; the slot that it takes over from a lost trial;
returned by a worker that was interrupted; one more than there are slots; its result."""

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


def _sqlite_url(folder: Path) -> str:
    return f"sqlite:///{quote(str(folder))}/{DATABASE}"


def open_storage(url: str | None, folder: Path) -> RDBStorage:
    """The storage at this URL, or the file `study.db` of the folder."""
    if url is None:
        with wait_for_lock(folder):
            return _open(_sqlite_url(folder), {"connect_args": {"timeout": 60}})
    scheme, _, rest = url.partition("://")
    rest = rest.replace("{", "%7B").replace("}", "%7D")  # Optuna formats the URL
    server = f"{SCHEMES[scheme]}://{rest}", {"pool_pre_ping": True}
    try:
        return _open(*server)
    except StorageError:  # two workers that create the tables at the same time
        time.sleep(2.0)
        return _open(*server)


def _open(url: str, engine: dict[str, Any]) -> RDBStorage:
    beats: Any = {"heartbeat_interval": BEAT_SECONDS, "grace_period": GRACE_SECONDS}
    with warnings.catch_warnings(), translate_db_errors(url):
        warnings.simplefilter("ignore", ExperimentalWarning)
        try:
            return RDBStorage(url, engine_kwargs=engine, **beats)
        except ImportError as error:
            raise UsageError("PostgreSQL needs psycopg: pip install 'atlas-robust[sweep]'") from error


@contextmanager
def translate_db_errors(url: str) -> Iterator[None]:
    """Turn errors of the database into a `StorageError` of one line, without the password."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        cause = getattr(error.__cause__, "orig", None) or getattr(error, "orig", None) or error
        text = " ".join(str(cause).split())
        for password in _passwords(url):
            text = text.replace(password, "***")
        raise StorageError(
            f"the study's storage cannot be used: {text}; repair it, then run the same command again"
        ) from None


@contextmanager
def wait_for_lock(folder: Path) -> Iterator[None]:
    """`locked`, after waiting for whoever has the lock."""
    deadline = time.monotonic() + LOCK_SECONDS
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(folder))
                break
            except LockError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield


def check_folder(folder: Path) -> None:
    """Refuse a folder with foreign files, before anything in it is changed."""
    if folder.is_dir() and not any((folder / name).exists() for name in (DATABASE, IDENTITY)):
        require_empty_dir(folder)


def _identity(folder: Path) -> str:
    """A name for the folder that is the same on every machine that shares it."""
    path = folder / IDENTITY
    if not path.exists():
        write_atomic(path, uuid.uuid4().hex.encode())
    return path.read_text()


@dataclass(frozen=True)
class Claim:
    """A trial that this worker has claimed, and its slot."""

    trial: Trial
    slot: int
    deaths: int
    """Workers that died at it: some trials kill theirs, by the memory they need, say."""


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
        """A trial to do, held while the context lasts; None if there is none left to start or resume."""
        with ExitStack() as held:
            with wait_for_lock(self.folder):
                self._requeue_lost()
                claim = self._ask(held)
            if claim is not None:
                held.enter_context(self._beating(claim.trial))
            yield claim

    def release(self, trial: Trial) -> None:
        """Return a trial to the queue. If the storage fails too, the next worker finds out."""
        with suppress(SQLAlchemyError, StorageInternalError):
            with suppress(UpdateFinishedTrialError):
                trial.set_user_attr(RELEASED, True)
            self._fail(trial.number)

    def unfinished(self) -> tuple[list[int], list[int]]:
        """The slots without a result: those with a live worker, and those without."""
        busy, lost = list[int](), list[int]()
        with wait_for_lock(self.folder):
            for slot, trial in newest(self.trials()).items():
                if trial.state == TrialState.RUNNING:
                    orphan = FOLDER not in trial.user_attrs or self._is_orphan(trial, slot)
                    (lost if orphan else busy).append(slot)
                elif trial.state in (TrialState.FAIL, TrialState.WAITING):
                    lost.append(slot)
        return busy, lost

    # --- within the folder's lock ---

    def _ask(self, held: ExitStack) -> Claim | None:
        known = newest(self.trials())
        waiting = any(trial.state == TrialState.WAITING for trial in known.values())
        if not waiting and len(known) >= self.total:
            return None
        where = _identity(self.folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # heartbeats outside `optimize`: ours are below
            trial = self.study.ask(self.space)
        try:
            trial.set_user_attr(FOLDER, where)
            return self._claimed(trial, held)
        except Exception:  # otherwise it would count as started, and nobody would do it
            self.release(trial)
            raise

    def _claimed(self, trial: Trial, held: ExitStack) -> Claim | None:
        """The trial with its slot, if that is free; else another."""
        trials = self.trials()
        frozen = next(other for other in trials if other.number == trial.number)
        slot = slot_of(frozen, trials)
        if slot >= self.total or newest(trials)[slot].number != trial.number:
            # A worker of another folder asked at the same time.
            trial.set_user_attr(SURPLUS, True)
            self._fail(trial.number)
            return self._ask(held)
        try:
            held.enter_context(locked(self._lock(slot)))
        except LockError:  # its worker had no heartbeat for long, but lives; another one will look again
            return self._ask(held)
        lost = [t for t in trials if t.state == TrialState.FAIL and slot_of(t, trials) == slot]
        deaths = sum(not {RELEASED, SURPLUS} & set(t.user_attrs) for t in lost)
        return Claim(trial, slot, deaths)

    def _requeue_lost(self) -> None:
        """Find trials whose worker has died, and queue them again."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            optuna.storages.fail_stale_trials(self.study)
        for slot, trial in newest(self.trials()).items():
            if trial.state == TrialState.RUNNING and self._is_orphan(trial, slot):
                self._fail(trial.number)
        for slot, trial in newest(self.trials()).items():
            if trial.state == TrialState.FAIL:
                self.study.enqueue_trial(trial.params, user_attrs={SLOT: slot})

    def _is_orphan(self, trial: FrozenTrial, slot: int) -> bool:
        if trial.user_attrs.get(FOLDER) == _identity(self.folder):
            return not in_use(self._lock(slot))
        if FOLDER not in trial.user_attrs and self.storage.url == _sqlite_url(self.folder):
            return True  # trials are asked for under the folder's lock, which is ours now: its worker died
        started = trial.datetime_start
        old = started is not None and datetime.now() - started > timedelta(seconds=GRACE_SECONDS)
        return FOLDER not in trial.user_attrs and old  # died within its first moment

    def _lock(self, slot: int) -> Path:
        return self.folder / "claims" / f"{slot + 1:03d}"

    def _fail(self, number: int) -> None:
        with suppress(UpdateFinishedTrialError, ValueError):  # another worker has done it
            self.study.tell(number, state=TrialState.FAIL)

    @contextmanager
    def _beating(self, trial: Trial) -> Iterator[None]:
        """Record heartbeats, so that workers of other folders know that this trial is being done."""
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


def slot_of(trial: FrozenTrial, trials: Iterable[FrozenTrial]) -> int:
    """The slot of one of the trials: the one that it took over, or the next new one."""
    if SLOT in trial.user_attrs:
        return int(trial.user_attrs[SLOT])
    return sum(
        not {SLOT, SURPLUS} & set(other.user_attrs) and other.number < trial.number for other in trials
    )


def newest(trials: Sequence[FrozenTrial]) -> dict[int, FrozenTrial]:
    """The trial that counts for each slot that is taken: the last, unless one before it has ended."""
    found: dict[int, FrozenTrial] = {}
    for trial in sorted(trials, key=lambda t: t.number):
        if SURPLUS in trial.user_attrs:
            continue
        slot = slot_of(trial, trials)
        if slot not in found or found[slot].state == TrialState.FAIL:
            found[slot] = trial
    return found
