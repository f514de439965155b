"""Weak classes: the worst one in every table, and warnings of a class at 0% and of one answer for all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atlas.attacks import PGD
from atlas.data import Images
from atlas.evaluation import Report, Score, evaluate
from atlas.evaluation.evaluation_folder import load_report
from atlas.evaluation.flags import of_classes
from atlas.evaluation.probes import probe
from atlas.threat import Linf

EPS = 0.1
NAMES = ("dark", "bright", "rare")


def images() -> Images:
    """60 dark, 40 bright and 20 rare images, which are middling and told from the others by nobody below."""
    y = torch.tensor([0] * 60 + [1] * 40 + [2] * 20)
    levels = torch.tensor([0.1, 0.9, 0.45])[y]
    x = levels[:, None, None, None] + 0.01 * torch.arange(4).view(1, 1, 2, 2)
    return Images(x, y, 3, "levels", class_names=NAMES)


def by_brightness(x: Tensor) -> Tensor:
    bright = 20 * (x.flatten(1).mean(1) - 0.5)
    return torch.stack([-bright, bright, torch.full_like(bright, -100)], 1)


def run(model: object, folder: Path | None = None) -> Report:
    known = {"attacks": {"PGD": PGD(steps=3)}, "folder": folder, "progress": False}
    return evaluate(model, images(), Linf(EPS), **known)  # type: ignore[arg-type]


def test_the_worst_class_is_a_row_and_in_the_summary(tmp_path: Path) -> None:
    report = run(by_brightness, tmp_path)
    assert report.classes == {0: Score(60, 60), 1: Score(40, 40), 2: Score(0, 20)}
    assert report.worst_class == (2, Score(0, 20))
    assert report.lines()[-1][:2] == ("worst class: rare", "0.0% [0.0, 16.1]")
    assert "worst class: rare" in repr(report)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["worst_class"] | {"interval": None} == {
        **{"label": 2, "name": "rare", "valid": True, "right": 0, "n": 20, "rate": 0.0, "interval": None}
    }
    again = load_report(tmp_path)
    assert (again.named(1), again.lines(), again.summary()) == ("bright", report.lines(), report.summary())


def test_a_class_at_zero_is_a_warning() -> None:
    (flag,) = [flag for flag in run(by_brightness).flags if flag.name == "class-at-zero"]
    assert not flag.fatal
    assert "class rare (0 of 20), where 83.3% of all are" in flag.message


def test_a_class_of_few_images_or_of_a_model_that_knows_nothing_is_none() -> None:
    """0 of 3 may be chance where half of all are right; 0 of 8 is not. An accuracy of 0 says it by itself."""
    assert of_classes({"a": Score(0, 3), "b": Score(50, 97)}, Score(50, 100)) == []
    (flag,) = of_classes({"a": Score(0, 8), "b": Score(50, 92)}, Score(50, 100))
    assert "class a (0 of 8)" in flag.message
    assert of_classes({"a": Score(0, 50), "b": Score(0, 50)}, Score(0, 100)) == []
    many = {str(k): Score(0, 10) for k in range(8)}
    (flag,) = of_classes({**many, "b": Score(80, 80)}, Score(80, 160))
    assert "4 (0 of 10) and 3 more" in flag.message


def always_dark(x: Tensor) -> Tensor:
    return torch.tensor([1.0, 0.0, 0.0]) + 0 * x.flatten(1)[:, :1]


def dark_below_the_top(x: Tensor) -> Tensor:
    """One answer to all of these images, another to a white one."""
    top = 20 * (x.flatten(1).mean(1) - 0.97)
    return torch.stack([0 * top, top, 0 * top - 100], 1)


@pytest.mark.parametrize("model", [always_dark, dark_below_the_top])
def test_one_answer_cannot_be_missed(model: object) -> None:
    """It is a Python warning where nothing is shown, before the attacks, and in the table."""
    with pytest.warns(UserWarning, match="WARNING: constant: all 120 images get the same answer, class 0"):
        report = run(model)
    assert report.valid
    assert "\nWARNING: constant: " in repr(report)
    assert report.clean.rate == 0.5
    if model is always_dark:
        assert report.worst.rate == 0.5


def test_one_answer_that_is_never_right_is_said_too() -> None:
    data = images()
    flags = probe(lambda x: always_dark(x).flip(1), data.x[:100], data.y[:100], Linf(EPS))
    assert [flag.name for flag in flags if flag.grave] == ["constant"]


def test_images_of_one_class_may_have_one_answer() -> None:
    dark = images().subset(slice(60))
    assert not [f for f in probe(by_brightness, dark.x, dark.y, Linf(EPS)) if f.name == "constant"]
