"""Who does which trial: of one folder, of two that share only the storage, and after a death."""

from __future__ import annotations

import sqlite3
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage
from optuna.trial import Trial, TrialState
from sqlalchemy.exc import OperationalError

from atlas.errors import UsageError
from atlas.sweeps.queue import DEATHS, Queue
from tests.unit.sweeps.runs import small_sweep

ALPHAS = [1e-6, 1e-5, 1e-4]
SWEEP = small_sweep(grid=["method.alpha=1e-6,1e-5,1e-4"])


def queue(folder: Path) -> Queue:
    return Queue.join(SWEEP, folder, None, 3)


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Queue]:
    """Of two machines that share a storage with heartbeats, as on a server, and no folder."""
    with pytest.warns(ExperimentalWarning):
        shared = RDBStorage(f"sqlite:///{tmp_path}/shared.db", heartbeat_interval=1, grace_period=2)
    monkeypatch.setattr("atlas.sweeps.queue.open_storage", lambda url, folder: shared)
    return [queue(tmp_path / machine / "s") for machine in ("one", "other")]


def claimed(*queues: Queue) -> tuple[list[Trial | None], ExitStack]:
    """A trial for each of them, one after the other, held until the stack is closed."""
    held = ExitStack()
    return [held.enter_context(each.claim()) for each in queues], held


def numbers(*queues: Queue) -> list[int | None]:
    """What they would do now."""
    trials, held = claimed(*queues)
    with held:
        return [None if trial is None else trial.number for trial in trials]


def test_workers_of_one_folder_get_different_trials(tmp_path: Path) -> None:
    one, other = queue(tmp_path / "s"), queue(tmp_path / "s")
    trials, held = claimed(one, other, one, other)
    with held:
        assert [trial and trial.number for trial in trials] == [0, 1, 2, None]
        assert [trial.params["method.alpha"] for trial in trials if trial] == ALPHAS


def test_workers_of_two_folders_never_take_one_trial(machines: list[Queue]) -> None:
    assert numbers(*machines, *machines) == [0, 1, 2, None]


def test_a_trial_without_a_heartbeat_for_long_is_taken_up(machines: list[Queue]) -> None:
    one, other = machines
    with one.claim() as alive:
        assert alive
        time.sleep(4)
        assert numbers(other) == [1], "the other shows heartbeats"
    assert numbers(other) == [2], "nobody knows yet that it is lost"
    time.sleep(4)
    assert numbers(other, one) == [0, 1]


def test_a_lost_trial_keeps_its_number_and_point(tmp_path: Path) -> None:
    one = queue(tmp_path / "s")
    assert numbers(one, one) == [0, 1]
    with one.claim() as again:
        assert again
        assert (again.number, again.params, again.user_attrs[DEATHS]) == (0, {"method.alpha": 1e-6}, 1)
        one.release(again)
    with one.claim() as third:
        assert third
        assert (third.number, third.user_attrs[DEATHS]) == (0, 1), "none died at what was released"
    assert one.unfinished() == [0, 1, 2]


@pytest.mark.parametrize(
    ("owner", "method"), [(RDBStorage, "set_trial_state_values"), (Trial, "_suggest")], ids=["claim", "point"]
)
def test_an_error_of_the_storage_while_a_trial_is_claimed_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    def broken(*arguments: object) -> None:
        raise OperationalError("UPDATE", None, sqlite3.OperationalError("disk I/O error"))

    one = queue(tmp_path / "s")
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, broken)
        with pytest.raises(OperationalError, match="disk I/O error"), one.claim():
            pass
    trials, held = claimed(queue(tmp_path / "s"))
    with held:
        assert [trial and trial.params for trial in trials] == [{"method.alpha": 1e-6}]


def test_a_number_that_grows_adds_trials_and_one_too_many_is_not_done(tmp_path: Path) -> None:
    """Two workers of two folders that start at the same time may both add what is missing."""
    search = small_sweep(ranges=["method.alpha=1e-7..1e-3:log"])
    queues = [Queue.join(search, tmp_path / "s", None, total) for total in (3, 1, 2)]
    assert [len(each.unfinished()) for each in queues] == [3, 1, 2]
    assert numbers(*[queues[2]] * 3) == [0, 1, None]
    states = [trial.state for trial in queues[0].trials()]
    assert states == [TrialState.RUNNING, TrialState.RUNNING, TrialState.WAITING]


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "best.toml").touch()
    with pytest.raises(UsageError, match="holds other files"):
        queue(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["best.toml"]
