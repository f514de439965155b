"""A cell against hand-made numbers: means, intervals, differences, and what has no number."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from atlas.evaluation import Score
from atlas_paper.results import T_95, Measured, Value, Verdicts, shared


def value(*rates: float, paper: float | None = 80.0, n: int = 200, **rest: object) -> Value:
    seeds = tuple(Measured(k, Score(round(rate * n), n)) for k, rate in enumerate(rates))
    return Value("PGD-20", paper, seeds, **rest)  # type: ignore[arg-type]


def test_one_seed_has_wilsons_interval() -> None:
    one = value(0.75)
    interval = stats.binomtest(150, 200).proportion_ci(method="wilson")
    assert one.ours == 75.0
    assert one.interval == pytest.approx((100 * interval.low, 100 * interval.high))
    assert one.difference == -5.0


@pytest.mark.parametrize("rates", [(0.75, 0.8), (0.7, 0.72, 0.8), (0.1, 0.2, 0.3, 0.4, 0.5)])
def test_several_seeds_on_many_images_have_students_interval(rates: tuple[float, ...]) -> None:
    several = value(*rates, n=10**8)
    percent = 100 * np.array(rates)
    low, high = stats.t.interval(0.95, len(rates) - 1, percent.mean(), stats.sem(percent))
    assert several.ours == pytest.approx(percent.mean())
    assert several.interval == pytest.approx((max(0, low), min(100, high)), abs=0.02)
    assert [each["rate"] for each in several.plain()["seeds"]] == pytest.approx(list(rates))


def test_seeds_that_agree_leave_the_choice_of_images() -> None:
    assert value(0.75, 0.75, 0.75).interval == pytest.approx(value(0.75).interval)


def test_an_interval_covers_other_seeds_and_other_images() -> None:
    """Models that differ by seed, each shown the same few images: the truth is in 95% of the intervals."""
    draw, truth, n, trials = np.random.default_rng(0), 0.7, 100, 2000
    found = 0
    for _ in range(trials):
        hard = stats.norm.ppf(draw.uniform(size=n))  # an image is right where the model is strong enough
        strength = stats.norm.ppf(truth) * np.sqrt(1 + 0.3**2) + 0.3 * draw.normal(size=3)
        low, high = value(*((hard < s).mean() for s in strength), n=n).interval or (0, 0)
        found += low <= 100 * truth <= high
    assert 0.93 < found / trials < 0.995


def test_the_points_of_students_distribution() -> None:
    wanted = [stats.t.ppf(0.975, freedom) for freedom in range(1, len(T_95) + 1)]
    assert pytest.approx(wanted, abs=5e-4) == T_95


def test_what_is_invalid_has_no_number() -> None:
    seeds = (Measured(0, Score(10, 20)), Measured(1, Score(11, 20, ("random",))))
    broken = Value("PGD-20", 80.0, seeds)
    assert (broken.ours, broken.interval, broken.difference) == (None, None, None)
    assert broken.cell().text == "invalid (random)"
    assert broken.cell().value is None
    assert broken.status == "invalid"


def test_what_is_missing_or_failed_has_no_number() -> None:
    assert value().cell().text == "-"
    assert value(marks=("failed",)).cell().text == "failed"
    assert value().status == "missing"


def test_a_mark_stands_beside_the_number() -> None:
    assert value(0.75, marks=("collapsed",)).cell().text == "75.00, collapsed"
    assert value(0.75).cell().text == "75.00"


def test_the_paper_may_be_silent() -> None:
    silent = value(0.75, paper=None)
    assert (silent.difference, silent.paper_cell().text) == (None, "-")


def test_times_have_no_difference() -> None:
    spent = Value("s/batch", 0.012, (), timing={"seconds": 0.5, "load": 2.0})
    assert (spent.ours, spent.difference, spent.interval, spent.status) == (0.5, None, None, "done")
    assert spent.paper_cell().text == "0.012"


def test_verdicts_are_compared_on_the_images_that_both_saw() -> None:
    one = Verdicts(torch.tensor([5, 1, 9, 3]), torch.tensor([True, False, True, True]))
    two = Verdicts(torch.tensor([1, 3, 4, 5]), torch.tensor([True, True, True, False]))
    a, b = shared([one, two])
    assert a.ids.tolist() == b.ids.tolist() == [1, 3, 5]
    assert a.right.tolist() == [False, True, True]
    assert b.right.tolist() == [True, True, False]
