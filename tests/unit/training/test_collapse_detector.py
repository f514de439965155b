"""The detector of catastrophic overfitting: a fall together with a jump, reported once."""

from __future__ import annotations

import math

import pytest

from atlas.training.schedule import CollapseDetector


def said(*epochs: tuple[float, float]) -> list[bool]:
    """Whether each (robust accuracy, Jacobian) was announced as a collapse; 5,000 images, 90% clean."""
    detector = CollapseDetector()
    return [detector.check(i, robust, 0.9, jac, 5000) is not None for i, (robust, jac) in enumerate(epochs)]


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
    detector = CollapseDetector()
    detector.check(0, 0.8, 0.9, 10.0, 5000)
    words = detector.check(1, 0.25, 0.91, 375.0, 5000)
    assert words is not None
    for part in ("catastrophic overfitting", "epoch 2", "80.0%", "25.0%", "10", "375", "91.0%"):
        assert part in words


@pytest.mark.parametrize(
    ("epochs", "collapses"),
    [
        ([(0.8, 10.0), (0.75, 12.0), (0.72, 15.0), (0.69, 21.0)], [3]),
        ([(0.8, 10.0), (0.9, 50.0), (0.75, 60.0), (0.75, 101.0)], [3]),
        ([(0.8, 10.0), (0.3, 90.0), (0.2, 500.0), (0.1, 5.0), (0.4, 90.0)], [1]),
        ([(0.8, 10.0), (0.3, 90.0), (0.75, 11.0), (0.3, 90.0)], [1, 3]),
        ([(0.8, 10.0), (0.6, 12.0), (0.6, 30.0)], [2]),
        ([(0.0, 1e9)], []),
    ],
    ids=[
        "a slow fall, measured from the best epoch and not from the last",
        "measured from a new best",
        "said once",
        "said again after a recovery",
        "a jump after the fall",
        "never in the first epoch",
    ],
)
def test_when_a_collapse_is_said(epochs: list[tuple[float, float]], collapses: list[int]) -> None:
    assert [epoch for epoch, collapse in enumerate(said(*epochs)) if collapse] == collapses


@pytest.mark.parametrize(("n", "collapse"), [(30, False), (5000, True)])
def test_a_fall_within_chance_is_none(n: int, collapse: bool) -> None:
    """20 points of 30 images are 1.6 standard errors."""
    detector = CollapseDetector()
    detector.check(0, 0.6, 0.9, 10.0, n)
    assert (detector.check(1, 0.4, 0.9, 50.0, n) is not None) is collapse


@pytest.mark.parametrize(
    ("clean", "collapse"), [(0.99, True), (0.9, True), (0.71, True), (0.69, False), (0.1, False)]
)
def test_a_model_that_got_worse_at_everything_has_not_collapsed(clean: float, collapse: bool) -> None:
    """Robust accuracy falls by 40 points, clean accuracy from 90%."""
    detector = CollapseDetector()
    detector.check(0, 0.8, 0.9, 10.0, 5000)
    assert (detector.check(1, 0.4, clean, 50.0, 5000) is not None) is collapse
