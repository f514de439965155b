"""Cells and rows by hand: means, intervals, the worst case, chance, and flags over different images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from atlas.evaluation import Score
from atlas.evaluation.flags import after, raised
from atlas_paper.results import T_95, CellResult
from tests.unit.paper.by_hand import report, result


def value(*rates: float, paper: float | None = 80.0, n: int = 200, **rest: Any) -> CellResult:
    return CellResult("PGD-20", paper, {k: Score(round(rate * n), n) for k, rate in enumerate(rates)}, **rest)


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
    broken = CellResult("PGD-20", 80.0, {0: Score(10, 20), 1: Score(11, 20, ("random",))})
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
    spent = CellResult("s/batch", 0.012, timing={"seconds": 0.5, "load": 2.0})
    assert (spent.ours, spent.difference, spent.interval, spent.status) == (0.5, None, None, "done")
    assert spent.paper_cell().text == "0.012"


def test_two_cells_are_compared_on_the_images_that_both_saw() -> None:
    def cell(ids: list[int], right: list[bool], *reasons: str) -> CellResult:
        score = Score(sum(right), len(right), reasons)
        return CellResult("PGD-20", None, {0: score}, torch.tensor(ids), {0: torch.tensor(right)})

    one = cell([1, 3, 5, 9], [False, True, True, True])
    two = cell([1, 3, 4, 5], [True, True, True, False])
    ((seed, pair),) = one.paired(two)
    assert (seed, pair.n, pair.only_a, pair.only_b) == (0, 3, 1, 1)
    assert not list(one.paired(cell([1, 3], [True, True], "random"))), "an invalid result is not compared"


def test_clean_is_of_the_most_images_and_worst_is_image_by_image() -> None:
    large, small = report([1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 0]), report([0, 1, 1, 1], [1, 1, 1, 1])
    row = result({"PGD-20": large, "Un-T": small}, usual=4)
    clean, worst = row.right("clean"), row.right("worst case")
    assert clean is not None
    assert (clean[2].right, clean[2].n) == (5, 6)
    assert worst is not None
    assert worst[0].tolist() == [0, 1, 2, 3]
    assert worst[1].tolist() == [False, True, True, False]
    assert row.worst_of == ("PGD-20", "Un-T")


def test_a_column_on_fewer_images_than_most_is_no_part_of_the_worst_case() -> None:
    many, few = report([1, 1, 0, 1], [1, 1, 1, 1]), report([0, 0], [1, 1])
    row = result({"PGD-20": many, "RayS": few}, usual=4)
    worst = row.right("worst case")
    assert row.worst_of == ("PGD-20",)
    assert worst is not None
    assert (worst[2].right, worst[2].n) == (3, 4)
    whole = result({"PGD-20": many, "RayS": few}, usual=None)
    assert whole.worst_of == ("PGD-20",), "all images are what the largest has"


def test_there_is_no_worst_case_until_all_columns_are_there() -> None:
    row = result({"PGD-20": report([1, 1], [1, 1])}, expected=2)
    assert not row.complete
    assert row.right("worst case") is None
    assert row.right("Un-T") is None
    assert row.right("PGD-20") is not None
    assert result({}, expected=1).right("clean") is None


@pytest.mark.parametrize(("right", "chance"), [(50, True), (55, True), (75, False)])
def test_a_model_that_names_the_commonest_class_is_at_chance(right: int, chance: bool) -> None:
    """Of 100 images half are of either class; 55 right could be chance, 75 not."""
    flags = [1] * right + [0] * (100 - right)
    assert result({"PGD-20": report(flags, flags)}).at_chance is chance


def test_a_black_box_attack_that_finds_more_is_flagged_across_columns() -> None:
    """By hand: of 100 images the white-box attack leaves 90, of which the other fools 5."""
    everything = [1] * 100
    white = report([0] * 10 + [1] * 90, everything)
    black = report([1] * 95 + [0] * 5, everything, white_box=False)
    row = result({"PGD-20": white, "RayS": black})
    assert [flag.name for flag in row.flags] == ["black-box-stronger"]
    assert "fools 5 of 100 images" in row.flags[0].message
    assert result({"PGD-20": white}).flags == []


def test_flags_are_of_the_images_that_all_columns_saw() -> None:
    """Of images 0 to 199 the white-box attack leaves those from 10 on; the other saw 100 to 219 only."""
    white = report([0] * 10 + [1] * 190, [1] * 200)
    black = report([0] * 6 + [1] * 94 + [0] * 20, [1] * 120, ids=list(range(100, 220)), white_box=False)
    (flag,) = result({"PGD-20": white, "RayS": black}).flags
    assert "fools 6 of 100 images" in flag.message


def test_a_column_on_few_images_takes_none_from_the_others() -> None:
    """By hand: Square fools 20 of 400 images beyond the white-box attack, RayS 3 of the 50 that it saw."""
    everything = [1] * 400
    white = report(everything, everything)
    square = report(([0] + [1] * 19) * 20, everything, white_box=False, name="Square")
    rays = report([1] * 47 + [0] * 3, [1] * 50, white_box=False, name="RayS")
    row = result({"Un-T": white, "AutoAttack": square, "RayS": rays}, usual=400)
    found = [flag.message.partition(":")[0] for flag in row.flags]
    assert found == [
        f"{who} images that every white-box attack left"
        for who in ("Square fools 20 of 400", "RayS fools 3 of 50")
    ]


def test_columns_on_equally_few_images_are_judged_together() -> None:
    """Un-T leaves all 400 images; of 50, Multi-T fools the first 6 and RayS the first 5 of those."""
    everything = [1] * 400
    multi = report([0] * 6 + [1] * 44, [1] * 50, name="Multi-T")
    rays = report([0] * 5 + [1] * 45, [1] * 50, white_box=False, name="RayS")
    row = result({"Un-T": report(everything, everything), "Multi-T": multi, "RayS": rays}, usual=400)
    assert row.flags == []


def test_every_black_box_attack_that_finds_more_is_named() -> None:
    everything = [1] * 100
    white = report([0] * 10 + [1] * 90, everything)
    rays, square = (report([1] * (100 - k) + [0] * k, everything, white_box=False) for k in (5, 6))
    messages = [flag.message for flag in result({"PGD-20": white, "RayS": rays, "Square": square}).flags]
    assert ["fools 5 of 100" in messages[0], "fools 6 of 100" in messages[1], len(messages)] == [
        True,
        True,
        2,
    ]


def test_what_the_probes_saw_is_said_once_and_what_one_column_found_by_itself_is_not() -> None:
    everything = [1] * 100
    probed = raised("not-uphill", "7 of 64 images")
    many, few = report([1] * 100, everything), report([0] * 10 + [1] * 90, everything)
    late = replace(few.results["attack"], step=torch.full((100,), 9), steps=9)
    many = replace(many, flags=[probed, *after(list(many.results.values()))])
    few = replace(few, results={"attack": late}, flags=[probed, *after([late])])
    assert [flag.name for flag in few.flags] == ["not-uphill", "still-gaining"]
    assert result({"PGD-20": many, "Un-T": few}).flags[0] == probed
    found = [flag.name for flag in result({"PGD-20": many, "Un-T": few}).flags]
    assert found == ["not-uphill", "still-gaining"]


def test_a_flag_in_the_words_of_an_older_version_is_not_repeated() -> None:
    few = report([0] * 10 + [1] * 90, [1] * 100)
    late = replace(few.results["attack"], step=torch.full((100,), 9), steps=9)
    (flag,) = after([late])
    old = replace(few, results={"attack": late}, flags=[replace(flag, message="in other words")])
    assert result({"Un-T": old}).flags == [flag]
