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
