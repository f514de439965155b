"""Cells and rows by hand: means, intervals, the worst case, chance, and flags over different images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from atlas.evaluation.flags import after, raised
from atlas_paper.cells import T_95, CellResult, interval_of_mean
from tests.unit.paper.by_hand import report, result

ALL = [1] * 100


def cell(*counts: int, paper: float | None = 80.0, ids: list[int] | None = None) -> CellResult:
    """Seeds that get these counts of 100 images right under PGD-20."""
    reports = [report([1] * k + [0] * (100 - k), ALL, ids) for k in counts]
    return CellResult("PGD-20", [result({"PGD-20": r}, seed=k) for k, r in enumerate(reports)], paper)


def test_one_seed_has_wilsons_interval() -> None:
    one = cell(75)
    interval = stats.binomtest(75, 100).proportion_ci(method="wilson")
    assert (one.ours, one.n, one.difference) == (75.0, 100, -5.0)
    assert one.interval == pytest.approx((100 * interval.low, 100 * interval.high))


@pytest.mark.parametrize("rates", [(0.75, 0.8), (0.7, 0.72, 0.8), (0.1, 0.2, 0.3, 0.4, 0.5)])
def test_several_seeds_on_many_images_have_students_interval(rates: tuple[float, ...]) -> None:
    percents = 100 * np.array(rates)
    low, high = stats.t.interval(0.95, len(rates) - 1, percents.mean(), stats.sem(percents))
    assert interval_of_mean(rates, n=10**8) == pytest.approx((max(0, low), min(100, high)), abs=0.02)


def test_several_seeds_in_a_cell() -> None:
    several = cell(70, 75, 80)
    assert several.ours == pytest.approx(75)
    assert several.interval == interval_of_mean([0.7, 0.75, 0.8], 100)
    assert [score.rate for score in several.scores.values()] == pytest.approx([0.7, 0.75, 0.8])
    assert cell(75, 75, 75).interval == pytest.approx(cell(75).interval), "the choice of images is left"


def test_an_interval_covers_other_seeds_and_other_images() -> None:
    """Models that differ by seed, each shown the same few images: the truth is in 95% of the intervals."""
    draw, truth, n, trials = np.random.default_rng(0), 0.7, 100, 2000
    found = 0
    for _ in range(trials):
        hard = stats.norm.ppf(draw.uniform(size=n))  # an image is right where the model is strong enough
        strength = stats.norm.ppf(truth) * np.sqrt(1 + 0.3**2) + 0.3 * draw.normal(size=3)
        low, high = interval_of_mean([float((hard < s).mean()) for s in strength], n)
        found += low <= 100 * truth <= high
    assert 0.93 < found / trials < 0.995


def test_the_points_of_students_distribution() -> None:
    wanted = [stats.t.ppf(0.975, freedom) for freedom in range(1, len(T_95) + 1)]
    assert pytest.approx(wanted, abs=5e-4) == T_95


def test_what_is_invalid_has_no_number() -> None:
    good, bad = cell(50, 55).jobs
    flags = [raised("random", "by hand", fatal=True)]
    bad = replace(bad, reports={"PGD-20": replace(bad.reports["PGD-20"], flags=flags)})
    broken = CellResult("PGD-20", [good, bad], 80.0)
    assert (broken.ours, broken.interval, broken.difference, broken.status) == (None, None, None, "invalid")
    assert (broken.cell().text, broken.cell().value) == ("invalid (random)", None)
    assert not list(broken.paired(cell(50)))[1:], "an invalid result is not compared"


def test_what_is_missing_or_failed_has_no_number() -> None:
    job = result({}, more=("PGD-20",))
    for state, text in (("unfinished", "-"), ("failed", "failed")):
        one = CellResult("PGD-20", [replace(job, state=state)])  # type: ignore[arg-type]
        assert (one.cell().text, one.status) == (text, "missing")


def test_the_paper_may_be_silent_and_times_have_no_difference() -> None:
    silent = cell(75, paper=None)
    assert (silent.difference, silent.paper_cell().text) == (None, "-")
    timed = replace(result({}), timing={"seconds": 0.5, "load": 2.0})
    spent = CellResult("s/batch", [timed], 0.012)
    assert (spent.ours, spent.difference, spent.interval, spent.status) == (0.5, None, None, "done")
    assert spent.paper_cell().text == "0.012"


def test_two_cells_are_compared_on_the_images_that_both_saw() -> None:
    one, two = (
        CellResult("PGD-20", [result({"PGD-20": report(right, [1] * 4, ids)})])
        for right, ids in (([0, 1, 1, 1], [1, 3, 5, 9]), ([1, 1, 1, 0], [1, 3, 4, 5]))
    )
    ((seed, pair),) = one.paired(two)
    assert (seed, pair.n, pair.only_a, pair.only_b) == (0, 3, 1, 1)


def test_a_mean_of_fewer_seeds_says_so() -> None:
    one, two = cell(70, 80).jobs
    assert CellResult("PGD-20", [one, two]).marks == ()
    assert CellResult("PGD-20", [one, replace(two, reports={})]).cell().text == "70.00, 1 of 2 seeds"


def test_clean_is_of_the_most_images_and_worst_is_image_by_image() -> None:
    large, small = report([1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 0]), report([0, 1, 1, 1], [1, 1, 1, 1])
    row = result({"PGD-20": large, "Un-T": small})
    clean, worst = row.right("clean"), row.right("worst case")
    assert clean is not None
    assert (clean[2].right, clean[2].n) == (5, 6)
    assert worst is not None
    assert worst[0].tolist() == [0, 1, 2, 3]
    assert worst[1].tolist() == [False, True, True, False]


def test_a_column_on_fewer_images_than_most_is_no_part_of_the_worst_case() -> None:
    many, few = report([1, 1, 0, 1], [1, 1, 1, 1]), report([0, 0], [1, 1])
    row = result({"PGD-20": many, "RayS": few}, few=("RayS",))
    worst = row.right("worst case")
    assert row.worst_of == ("PGD-20",)
    assert worst is not None
    assert (worst[2].right, worst[2].n) == (3, 4)


def test_there_is_no_worst_case_until_all_columns_are_there() -> None:
    row = result({"PGD-20": report([1, 1], [1, 1])}, more=("Un-T",))
    assert row.lacks == "attacks not finished"
    assert row.right("worst case") is None
    assert row.right("Un-T") is None
    assert row.right("PGD-20") is not None
    assert result({}, more=("Un-T",)).right("clean") is None


@pytest.mark.parametrize(("right", "chance"), [(50, True), (55, True), (75, False)])
def test_a_model_that_names_the_commonest_class_is_at_chance(right: int, chance: bool) -> None:
    """Of 100 images half are of either class; 55 right could be chance, 75 not."""
    flags = [1] * right + [0] * (100 - right)
    assert ("at chance" in result({"PGD-20": report(flags, flags)}).marks) is chance


# --- warnings ---


def test_black_box_attacks_that_find_more_are_flagged_across_columns() -> None:
    """By hand: of 100 images the white-box attack leaves 90, of which the others fool 5 and 6."""
    white = report([0] * 10 + [1] * 90, ALL)
    rays, square = (report([1] * (100 - k) + [0] * k, ALL, white_box=False) for k in (5, 6))
    flags = result({"PGD-20": white, "RayS": rays, "Square": square}).flags
    assert {flag.name for flag in flags} == {"black-box-stronger"}
    assert [flag.message.partition(" images")[0] for flag in flags] == [
        "attack fools 5 of 100",
        "attack fools 6 of 100",
    ]
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
    row = result({"Un-T": white, "AutoAttack": square, "RayS": rays}, few=("RayS",))
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
    white = report(everything, everything)
    row = result({"Un-T": white, "Multi-T": multi, "RayS": rays}, few=("Multi-T", "RayS"))
    assert row.flags == []


def test_what_the_probes_saw_is_said_once_and_what_one_column_found_by_itself_is_not() -> None:
    probed = raised("not-uphill", "7 of 64 images")
    many, few = report(ALL, ALL), report([0] * 10 + [1] * 90, ALL)
    late = replace(few.results["attack"], step=few.ids * 0 + 9, steps=9)
    many = replace(many, flags=[probed, *after(list(many.results.values()))])
    (gaining,) = after([late])
    few = replace(few, results={"attack": late}, flags=[probed, gaining])
    assert result({"PGD-20": many, "Un-T": few}).flags[0] == probed
    assert [flag.name for flag in result({"PGD-20": many, "Un-T": few}).flags] == ["not-uphill", gaining.name]
    old = replace(few, flags=[replace(gaining, message="in other words")])
    assert result({"Un-T": old}).flags == [gaining], "that of an older version is not repeated"
