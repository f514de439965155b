"""A row by hand: clean, worst case, chance, and flags over columns that saw different images."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atlas.evaluation.flags import after, raised
from tests.unit.paper.by_hand import exam, subject


def test_clean_is_of_the_most_images_and_worst_is_image_by_image() -> None:
    large, small = exam([1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 0]), exam([0, 1, 1, 1], [1, 1, 1, 1])
    row = subject({"PGD-20": large, "Un-T": small}, usual=4)
    clean, worst = row.verdicts("clean"), row.verdicts("worst case")
    assert clean is not None
    assert (clean.score.right, clean.score.n) == (5, 6)
    assert worst is not None
    assert worst.ids.tolist() == [0, 1, 2, 3]
    assert worst.right.tolist() == [False, True, True, False]
    assert row.worst_of == ("PGD-20", "Un-T")


def test_a_column_on_fewer_images_than_most_is_no_part_of_the_worst_case() -> None:
    many, few = exam([1, 1, 0, 1], [1, 1, 1, 1]), exam([0, 0], [1, 1])
    row = subject({"PGD-20": many, "RayS": few}, usual=4)
    worst = row.verdicts("worst case")
    assert row.worst_of == ("PGD-20",)
    assert worst is not None
    assert (worst.score.right, worst.score.n) == (3, 4)
    whole = subject({"PGD-20": many, "RayS": few}, usual=None)
    assert whole.worst_of == ("PGD-20",), "all images are what the largest has"


def test_there_is_no_worst_case_until_all_columns_are_there() -> None:
    row = subject({"PGD-20": exam([1, 1], [1, 1])}, expected=2)
    assert not row.complete
    assert row.verdicts("worst case") is None
    assert row.verdicts("Un-T") is None
    assert row.verdicts("PGD-20") is not None
    assert subject({}, expected=1).verdicts("clean") is None


@pytest.mark.parametrize(("right", "chance"), [(50, True), (55, True), (75, False)])
def test_a_model_that_names_the_commonest_class_is_at_chance(right: int, chance: bool) -> None:
    """Of 100 images half are of either class; 55 right could be chance, 75 not."""
    flags = [1] * right + [0] * (100 - right)
    assert subject({"PGD-20": exam(flags, flags)}).at_chance is chance


def test_a_black_box_attack_that_finds_more_is_flagged_across_columns() -> None:
    """By hand: of 100 images the white-box attack leaves 90, of which the other fools 5."""
    everything = [1] * 100
    white = exam([0] * 10 + [1] * 90, everything)
    black = exam([1] * 95 + [0] * 5, everything, white_box=False)
    row = subject({"PGD-20": white, "RayS": black})
    assert [flag.name for flag in row.flags] == ["black-box-stronger"]
    assert "fools 5 of 100 images" in row.flags[0].message
    assert subject({"PGD-20": white}).flags == []


def test_flags_are_of_the_images_that_all_columns_saw() -> None:
    """Of images 0 to 199 the white-box attack leaves those from 10 on; the other saw 100 to 219 only."""
    white = exam([0] * 10 + [1] * 190, [1] * 200)
    black = exam([0] * 6 + [1] * 94 + [0] * 20, [1] * 120, ids=list(range(100, 220)), white_box=False)
    (flag,) = subject({"PGD-20": white, "RayS": black}).flags
    assert "fools 6 of 100 images" in flag.message


def test_a_column_on_few_images_takes_none_from_the_others() -> None:
    """By hand: Square fools 20 of 400 images beyond the white-box attack, RayS 3 of the 50 that it saw."""
    everything = [1] * 400
    white = exam(everything, everything)
    square = exam(([0] + [1] * 19) * 20, everything, white_box=False, name="Square")
    rays = exam([1] * 47 + [0] * 3, [1] * 50, white_box=False, name="RayS")
    row = subject({"Un-T": white, "AutoAttack": square, "RayS": rays}, usual=400)
    found = [flag.message.partition(":")[0] for flag in row.flags]
    assert found == [
        f"{who} images that every white-box attack left"
        for who in ("Square fools 20 of 400", "RayS fools 3 of 50")
    ]


def test_columns_on_equally_few_images_are_judged_together() -> None:
    """Un-T leaves all 400 images; of 50, Multi-T fools the first 6 and RayS the first 5 of those."""
    everything = [1] * 400
    multi = exam([0] * 6 + [1] * 44, [1] * 50, name="Multi-T")
    rays = exam([0] * 5 + [1] * 45, [1] * 50, white_box=False, name="RayS")
    row = subject({"Un-T": exam(everything, everything), "Multi-T": multi, "RayS": rays}, usual=400)
    assert row.flags == []


def test_every_black_box_attack_that_finds_more_is_named() -> None:
    everything = [1] * 100
    white = exam([0] * 10 + [1] * 90, everything)
    rays, square = (exam([1] * (100 - k) + [0] * k, everything, white_box=False) for k in (5, 6))
    messages = [flag.message for flag in subject({"PGD-20": white, "RayS": rays, "Square": square}).flags]
    assert ["fools 5 of 100" in messages[0], "fools 6 of 100" in messages[1], len(messages)] == [
        True,
        True,
        2,
    ]


def test_what_the_probes_saw_is_said_once_and_what_one_column_found_by_itself_is_not() -> None:
    everything = [1] * 100
    probed = raised("not-uphill", "7 of 64 images")
    many, few = exam([1] * 100, everything), exam([0] * 10 + [1] * 90, everything)
    for each in (many, few):
        each.report.flags.extend([probed, *after(each.records(each.report.ids))])
    late = replace(next(iter(few.report.results.values())), step=torch.full((100,), 9), steps=9)
    few.report.results["attack"] = late
    few.report.flags.extend(after(few.records(few.report.ids)))
    assert [flag.name for flag in few.report.flags] == ["not-uphill", "still-gaining"]
    assert subject({"PGD-20": many, "Un-T": few}).flags[0] == probed
    found = [flag.name for flag in subject({"PGD-20": many, "Un-T": few}).flags]
    assert found == ["not-uphill", "still-gaining"]
