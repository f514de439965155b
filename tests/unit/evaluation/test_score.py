"""Scores: Wilson's interval against its definition."""

from __future__ import annotations

import math

import pytest

from atlas.evaluation import Score


@pytest.mark.parametrize(("right", "n"), [(0, 10), (10, 10), (1, 7), (923, 1000), (5000, 10000)])
def test_the_interval_holds_the_rates_that_the_sample_does_not_reject(right: int, n: int) -> None:
    """Its ends q solve |p - q| = z sqrt(q (1 - q) / n): found here by bisection."""
    p, z = right / n, 1.959963984540054

    def rejected(q: float) -> bool:
        return abs(p - q) > z * math.sqrt(q * (1 - q) / n)

    for end, edge in zip(Score(right, n).interval, (0.0, 1.0), strict=True):
        inside, outside = p, edge
        for _ in range(80):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if rejected(middle) else (middle, outside)
        assert end == pytest.approx(inside, abs=1e-9)


def test_scores_read_as_people_write_them() -> None:
    assert str(Score(923, 1000)) == "92.3% [90.5, 93.8]"


def test_masked_gradients_leave_an_upper_bound_and_spoilt_answers_leave_nothing() -> None:
    masked = Score(11, 50, ("zero-gradients", "large-eps"))
    assert str(masked) == "at most 22.0% (upper bound; likely lower, because of zero-gradients, large-eps)"
    reasons = ["zero-gradients", "large-eps"]
    assert masked.plain() == {"valid": False, "reasons": reasons, "right": 11, "n": 50, "at_most": 0.22}
    for spoilt in ("random", "changing", "batch-dependent", "non-finite"):
        score = Score(11, 50, ("zero-gradients", spoilt))
        assert str(score) == f"invalid (zero-gradients, {spoilt})"
        assert score.plain() == {"valid": False, "reasons": ["zero-gradients", spoilt]}
