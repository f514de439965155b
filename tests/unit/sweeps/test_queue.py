"""Who does which trial: of one folder, of two that share only the storage, and after a death."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from optuna.trial import Trial, TrialState
from sqlalchemy.exc import OperationalError

from atlas.sweeps.queue import SURPLUS, Queue, newest, open_storage
from atlas.sweeps.study import join
from tests.unit.sweeps.runs import small_sweep

GRID = ["method.alpha=1e-6,1e-5,1e-4"]


def queue(folder: Path, storage_folder: Path | None = None, total: int = 3) -> Queue:
    sweep = small_sweep(grid=GRID)
    storage = open_storage(None, storage_folder or folder)
    return Queue(join(sweep, storage, folder), storage, sweep.space, folder, total)


def test_workers_of_one_folder_get_different_slots(tmp_path: Path) -> None:
    one, other = queue(tmp_path / "s"), queue(tmp_path / "s")
    with one.next() as a, other.next() as b, one.next() as c, other.next() as d:
        assert a
        assert b
        assert c
        assert [a.slot, b.slot, c.slot] == [0, 1, 2]
        assert [claim.trial.params["method.alpha"] for claim in (a, b, c)] == [1e-6, 1e-5, 1e-4]
        assert d is None


def test_workers_of_two_folders_never_take_one_trial_and_drop_what_is_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = queue(tmp_path / "a/s", tmp_path / "db"), queue(tmp_path / "b/s", tmp_path / "db")
    with one.next() as a, other.next() as b:
        assert a
        assert b
        assert (a.slot, b.slot) == (0, 1)
        # Both look, both see one slot left, both ask.
        seen = one.trials()
        real = Queue.trials
        with one.next() as c:
            assert c
            answers = iter([seen])
            monkeypatch.setattr(Queue, "trials", lambda self: next(answers, None) or real(self))
            monkeypatch.setattr(Queue, "_requeue_lost", lambda self: None)
            with other.next() as d:
                assert d is None
    dropped = [trial for trial in one.trials() if SURPLUS in trial.user_attrs]
    assert [trial.state for trial in dropped] == [TrialState.FAIL]
    assert sorted(newest(one.trials())) == [0, 1, 2]


def test_a_trial_of_another_folder_is_left_to_its_worker(tmp_path: Path) -> None:
    """No lock of ours can tell whether it lives: only its signs of life can."""
    one, other = queue(tmp_path / "a/s", tmp_path / "db"), queue(tmp_path / "b/s", tmp_path / "db")
    with one.next() as a:
        assert a
    with other.next() as b:
        assert b
        assert (a.slot, b.slot) == (0, 1)


def test_a_lost_trial_keeps_its_slot_and_point(tmp_path: Path) -> None:
    one = queue(tmp_path / "s")
    with one.next() as a, one.next() as b:
        assert a
        assert b
    with one.next() as again, one.next() as after:
        assert again
        assert after
        assert [again.slot, after.slot] == [0, 1]
        assert again.trial.params == {"method.alpha": 1e-6}
        assert again.deaths == 1
        one.release(again.trial)
    with one.next() as third:
        assert third
        assert (third.slot, third.deaths) == (0, 1)


def test_a_trial_that_gave_no_sign_of_life_for_long_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlas.sweeps.queue.GRACE_SECONDS", 1)
    monkeypatch.setattr("atlas.sweeps.queue.BEAT_SECONDS", 0.2)
    one, other = queue(tmp_path / "a/s", tmp_path / "db"), queue(tmp_path / "b/s", tmp_path / "db")
    with one.next() as a:
        assert a
        time.sleep(2.5)
        with other.next() as b:
            assert b
            assert (a.slot, b.slot) == (0, 1), "it gave signs of life"
    time.sleep(2.5)
    with other.next() as c, other.next() as d:
        assert c
        assert d
        assert (c.slot, d.slot) == (0, 1)


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
def test_a_trial_whose_worker_died_before_it_noted_its_folder_is_taken_up_at_once(tmp_path: Path) -> None:
    one = queue(tmp_path / "s")
    one.study.ask(one.space)
    with one.next() as again, one.next() as after:
        assert again
        assert after
        assert [again.slot, after.slot] == [0, 1]
        assert again.trial.params == {"method.alpha": 1e-6}


@pytest.mark.parametrize("also", [False, True], ids=["once", "and in giving it back"])
def test_an_error_of_the_storage_while_a_trial_is_claimed_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, also: bool
) -> None:
    one = queue(tmp_path / "s")
    real, left = Trial.set_user_attr, [1 + also]

    def broken(trial: Trial, key: str, value: object) -> None:
        if left[0]:
            left[0] -= 1
            raise OperationalError("UPDATE", None, sqlite3.OperationalError("disk I/O error"))
        real(trial, key, value)

    monkeypatch.setattr(Trial, "set_user_attr", broken)
    with pytest.raises(OperationalError, match="disk I/O error"), one.next():
        pass
    with queue(tmp_path / "s").next() as again:
        assert again
        assert again.slot == 0
        assert one.unfinished() == ([0], [])
    assert one.unfinished() == ([], [0])


def test_a_folder_that_cannot_be_named_begins_no_trial(tmp_path: Path) -> None:
    one = queue(tmp_path / "s")
    (tmp_path / "s/folder.id").mkdir()
    with pytest.raises(IsADirectoryError), one.next():
        pass
    assert one.trials() == []
