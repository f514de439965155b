"""Signals are noted, and by all who wait for them."""

from __future__ import annotations

import signal

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
