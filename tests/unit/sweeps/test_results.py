"""The figure of a sweep, as in App. F."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atlas.sweeps.results import TrialResult, draw, names
from atlas.sweeps.study import Point
from tests.unit.sweeps.runs import small_sweep


def rows(points: list[Point]) -> list[TrialResult]:
    shares = {"clean": 0.9, "robust": 0.8, "epochs": 3, "best_epoch": 3}
    return [
        TrialResult(k, point, "done", "", 50, score=0.5 - k / 100, **shares) for k, point in enumerate(points)
    ]


def texts(path: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.with_suffix(".svg").read_text())


def test_a_grid_of_two_has_a_panel_for_each_value_of_the_shorter(tmp_path: Path) -> None:
    sweep = small_sweep(grid=["method.alpha=1e-6,1e-5,1e-4", "method.beta=0.1,1"])
    draw(rows(sweep.points), sweep, tmp_path / "figure")
    found = texts(tmp_path / "figure")
    assert [text for text in found if text.startswith("β = ")] == ["β = 0.1", "β = 1"]
    assert found.count("α") == 2
    assert {"clean", "robust", "best", "1e-06", "1e-05", "0.0001"} <= set(found)


def test_any_other_sweep_has_a_panel_for_each_parameter(tmp_path: Path) -> None:
    choices = ["training.optimizer.kind=sgd,adam"]
    sweep = small_sweep(ranges=["method.alpha=1e-7..1e-3:log", "method.beta=0.1..1"], choices=choices)
    points = [
        {"method.alpha": 10.0**-k, "method.beta": k / 10, "training.optimizer.kind": kind}
        for k, kind in zip((3, 4, 6), ("sgd", "adam", "sgd"), strict=True)
    ]
    draw(rows(points), sweep, tmp_path / "figure")
    found = texts(tmp_path / "figure")
    assert {"α", "β", "kind", "sgd", "adam"} <= set(found)


@pytest.mark.parametrize("state", ["pruned", "failed"])
def test_without_a_finished_trial_there_is_none(tmp_path: Path, state: str) -> None:
    sweep = small_sweep(grid=["method.alpha=1e-6"])
    draw([TrialResult(0, {"method.alpha": 1e-6}, state, "", 50)], sweep, tmp_path / "figure")
    assert not list(tmp_path.iterdir())


def test_short_names_stay_different() -> None:
    keys = ["training.optimizer.kind", "training.schedule.kind", "method.alpha", "training.optimizer.lr"]
    assert list(names(keys).values()) == [keys[0], keys[1], "α", "lr"]
