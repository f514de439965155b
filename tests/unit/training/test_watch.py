"""The watch for catastrophic overfitting: a fall together with a jump, said once."""

from __future__ import annotations

import math

import pytest

from atlas.training.watch import FALL, JUMP, Watch


def said(*epochs: tuple[float, float]) -> list[bool]:
    """Whether each (robust accuracy, Jacobian) was announced as a collapse."""
    watch = Watch()
    return [watch.look(i, robust, jacobian) is not None for i, (robust, jacobian) in enumerate(epochs)]


def test_the_rule_is_the_issues() -> None:
    assert FALL == 0.10
    assert JUMP > 1


@pytest.mark.parametrize(
    ("robust", "jacobian", "collapse"),
    [
        (0.69, 21.0, True),
        (0.0, 1e9, True),
        (0.69, math.inf, True),
        (0.69, 19.9, False),  # a fall alone
        (0.69, 20.0, False),  # not more than the jump
        (0.71, 1e9, False),  # a jump alone
        (0.85, 1e9, False),
        (0.69, 0.0, False),
        (0.69, math.nan, False),
    ],
)
def test_a_fall_and_a_jump_together(robust: float, jacobian: float, collapse: bool) -> None:
    """The best epoch had 80% and a Jacobian of 10."""
    assert said((0.5, 100.0), (0.8, 10.0), (robust, jacobian)) == [False, False, collapse]


def test_the_words_carry_the_numbers() -> None:
    watch = Watch()
    watch.look(0, 0.8, 10.0)
    words = watch.look(1, 0.25, 375.0)
    assert words is not None
    for part in ("catastrophic overfitting", "epoch 2", "80.0%", "25.0%", "10", "375"):
        assert part in words


def test_measured_from_the_best_epoch_not_from_the_last() -> None:
    """A slow fall is one too, and the Jacobian is compared with the one that the best epoch had."""
    assert said((0.8, 10.0), (0.75, 12.0), (0.72, 15.0), (0.69, 21.0)) == [False, False, False, True]


def test_a_new_best_moves_the_measure() -> None:
    assert said((0.8, 10.0), (0.9, 50.0), (0.75, 60.0), (0.75, 101.0)) == [False, False, False, True]


def test_said_once_for_one_collapse() -> None:
    assert said((0.8, 10.0), (0.3, 90.0), (0.2, 500.0), (0.1, 5.0), (0.4, 90.0)) == [
        *(False, True, False, False, False)
    ]


def test_armed_again_after_a_recovery() -> None:
    assert said((0.8, 10.0), (0.3, 90.0), (0.75, 11.0), (0.3, 90.0)) == [False, True, False, True]


def test_the_jump_may_come_after_the_fall() -> None:
    assert said((0.8, 10.0), (0.6, 12.0), (0.6, 30.0)) == [False, False, True]


def test_the_first_epoch_is_never_a_collapse() -> None:
    assert said((0.0, 1e9)) == [False]
