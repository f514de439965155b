"""The paired test: its p-value against binomials counted otherwise, its interval by how often it is right."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from atlas.errors import UsageError
from atlas.evaluation.compare import Paired, paired


def by_counting(a: int, b: int) -> Fraction:
    """The share of all 2^(a + b) ways to toss the disagreements that are at least as one-sided."""
    n, ways = a + b, 0
    for tosses in range(2**n):
        heads = tosses.bit_count()
        ways += abs(2 * heads - n) >= abs(a - b)
    return Fraction(ways, 2**n)


@pytest.mark.parametrize("a", range(8))
@pytest.mark.parametrize("b", range(8))
def test_p_value_by_counting_every_outcome(a: int, b: int) -> None:
    assert Paired(100, a, b).p_value == pytest.approx(float(by_counting(a, b)), rel=1e-15)


LARGE = [(0, 0), (3, 3), (57, 91), (480, 520), (4800, 5200), (900, 1), (0, 10000)]


@pytest.mark.parametrize(("a", "b"), LARGE)
def test_p_value_of_large_samples(a: int, b: int) -> None:
    """In logarithms of the gamma function, which share nothing with whole numbers."""
    n, k = a + b, min(a, b)
    logs = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in range(k + 1)]
    tail = math.fsum(math.exp(log - n * math.log(2)) for log in logs)
    assert Paired(10000, a, b).p_value == pytest.approx(min(1, 2 * tail), rel=1e-9)


@pytest.mark.parametrize(("a", "b"), LARGE)
def test_p_value_by_scipy(a: int, b: int) -> None:
    stats, n = pytest.importorskip("scipy.stats"), a + b
    wanted = stats.binomtest(a, n).pvalue if n else 1.0
    assert Paired(10000, a, b).p_value == pytest.approx(wanted, rel=1e-9)


def chance(n: int, p: float, q: float, a: int, b: int) -> float:
    """P(a images only the first gets right, b only the second), of n."""
    ways = math.comb(n, a) * math.comb(n - a, b)
    return ways * p**a * q**b * (1 - p - q) ** (n - a - b)


@pytest.mark.parametrize("n", [20, 60])
@pytest.mark.parametrize(("p", "q"), [(0.02, 0.02), (0.1, 0.05), (0.3, 0.1), (0.2, 0.2), (0.5, 0.01)])
def test_the_interval_holds_the_truth_95_times_in_100(n: int, p: float, q: float) -> None:
    """Summed over all tables: never far below its level, which Wald's own interval is."""
    covered = 0.0
    for a in range(n + 1):
        for b in range(n + 1 - a):
            low, high = Paired(n, a, b).interval
            covered += chance(n, p, q, a, b) * (low <= p - q <= high)
    assert covered > 0.935


def test_the_interval_of_a_large_sample_is_walds() -> None:
    n, a, b = 10000, 700, 500
    spread = math.sqrt(a + b - (a - b) ** 2 / n) / n
    low, high = Paired(n, a, b).interval
    assert low == pytest.approx(0.02 - 1.96 * spread, abs=2e-5)
    assert high == pytest.approx(0.02 + 1.96 * spread, abs=2e-5)


def test_counts_come_from_the_verdicts() -> None:
    a = torch.tensor([1, 1, 1, 0, 0, 1, 0], dtype=torch.bool)
    b = torch.tensor([1, 0, 0, 1, 0, 0, 0], dtype=torch.bool)
    found = paired(a, b)
    assert found == Paired(n=7, only_a=3, only_b=1)
    assert paired(b, a) == Paired(n=7, only_a=1, only_b=3)
    assert found.difference == pytest.approx(2 / 7)
    assert paired(b, a).p_value == found.p_value == 0.625
    low, high = found.interval
    assert paired(b, a).interval == pytest.approx((-high, -low))


def test_it_sees_what_two_intervals_would_hide() -> None:
    """92.0% and 91.0% of 1000 overlap widely; if nearly all that differ fall to one side, it is no chance."""
    found = Paired(1000, 11, 1)
    assert found.p_value == pytest.approx(2 * 13 / 4096)
    assert found.interval[0] > 0


@pytest.mark.parametrize(
    ("a", "b", "got"),
    [
        (torch.ones(3), torch.ones(3), r"float32 \[3\] and float32 \[3\]"),
        (torch.ones(3, 1) > 0, torch.ones(3, 1) > 0, r"bool \[3, 1\] and bool \[3, 1\]"),
        (torch.ones(0) > 0, torch.ones(0) > 0, r"bool \[0\] and bool \[0\]"),
        (torch.ones(3) > 0, torch.ones(4) > 0, r"bool \[3\] and bool \[4\]"),
    ],
)
def test_what_cannot_be_compared_is_refused(a: torch.Tensor, b: torch.Tensor, got: str) -> None:
    with pytest.raises(UsageError, match=rf"bool \[N\] on the same images, .*got {got}"):
        paired(a, b)
