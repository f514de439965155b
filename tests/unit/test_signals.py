"""Signals are noted, and by all who wait for them."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from pathlib import Path

import pytest

from atlas.errors import Interrupted
from atlas.signals import SIGNALS, caught_signals


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_told_by_check(number: int) -> None:
    before = signal.getsignal(number)
    with caught_signals() as requests:
        requests.check()
        signal.raise_signal(number)
        with pytest.raises(Interrupted) as caught:
            requests.check()
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) == before


def noted(*numbers: int) -> int:
    """The exit code of a process that receives these signals while it waits for them."""
    process = multiprocessing.get_context("fork").Process(target=_receive, args=numbers)
    process.start()
    process.join(30)
    assert process.exitcode is not None
    return process.exitcode


def _receive(*numbers: int) -> None:
    with caught_signals() as requests:
        for number in numbers:
            signal.raise_signal(number)
    sys.exit(requests.caught)


HUP, USR1, INT, TERM = signal.SIGHUP, signal.SIGUSR1, signal.SIGINT, signal.SIGTERM


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ((HUP, HUP, HUP), HUP),  # of the terminal, of the shell, and of the kernel when the shell has gone
        ((USR1, TERM), USR1),  # of a scheduler before the time limit, and at it
        ((HUP, USR1, INT), HUP),
        ((INT, TERM), -TERM),
        ((TERM, TERM), -TERM),
        ((HUP, INT, INT), -INT),
    ],
)
def test_only_a_second_sigint_or_sigterm_ends_the_process_at_once(
    numbers: tuple[int, ...], code: int
) -> None:
    assert noted(*numbers) == code


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(HUP, signal.SIG_IGN)
    try:
        assert noted(HUP) == 0
    finally:
        signal.signal(HUP, before)


def _tidy(path: Path) -> None:
    with caught_signals(before_death=path.touch):
        signal.raise_signal(INT)
        assert not path.exists()
        signal.raise_signal(INT)


def test_who_has_others_to_end_does_that_before_it_dies(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_tidy, args=(tmp_path / "tidied",))
    process.start()
    process.join(30)
    assert process.exitcode == -INT
    assert (tmp_path / "tidied").exists()


def test_the_outer_work_hears_what_the_inner_one_ended_too_soon_to_tell() -> None:
    with caught_signals() as outer:
        with caught_signals() as inner:
            signal.raise_signal(signal.SIGTERM)
        assert inner.caught == signal.SIGTERM
        with caught_signals() as later:
            later.check()
        with pytest.raises(Interrupted):
            outer.check()
    with caught_signals() as fresh:
        fresh.check()
