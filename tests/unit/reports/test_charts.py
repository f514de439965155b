"""What charts and plots draw, read back from the drawing: the ticks' labels tell where a value belongs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from atlas.evaluation import Score
from atlas.reports import figures
from atlas.reports.charts import (
    MOST_DOTS,
    SHAPES,
    Axis,
    Mark,
    Point,
    Series,
    even,
    jacobian_chart,
    line_chart,
    percent,
    powers,
    radius_chart,
    steps_chart,
    swatch,
    training_chart,
)
from atlas.reports.collect import Epoch
from atlas.threat import Linf

COURSE = [(0.2, 0.9, 10.0), (0.6, 0.8, 20.0), (0.4, 0.95, 3000.0)]
"""Robust and clean accuracy and J² of three epochs: the second is the best, the third collapses."""
SCORES = [Score(90, 100), Score(60, 100), Score(30, 100)]
RADII, STEPS = (0.0, 0.1, 0.2), (1, 10, 50)


def a_run(name: str = "mine") -> Any:
    epochs = [Epoch(k + 1, *values, k < 2, k == 2) for k, values in enumerate(COURSE)]
    return SimpleNamespace(name=name, epochs=epochs, best=epochs[1], collapse=epochs[2])


def a_study() -> Any:
    """With the accuracies above by radius and by steps."""
    by = {
        "by_radius": list(zip(RADII, SCORES, strict=True)),
        "by_steps": list(zip(STEPS, SCORES, strict=True)),
    }
    return SimpleNamespace(reasons=(), threat=Linf(0.1), **by)


class Drawing:
    """An SVG chart, in units of its axes."""

    def __init__(self, svg: str, log_x: bool = False, log_y: bool = False) -> None:
        self.root = ET.fromstring(svg)
        texts = [node for node in self.root.iter("text") if node.get("class") is None]
        down = [node for node in texts if node.get("text-anchor") == "end"]
        along = [node for node in texts if node.get("text-anchor") == "middle"]
        self.x = _scale([(float(node.attrib["x"]), float(node.text or "")) for node in along], log_x)
        self.y = _scale([(float(node.attrib["y"]) - 4, float(node.text or "")) for node in down], log_y)

    def lines(self, kind: str = "line") -> list[list[tuple[float, float]]]:
        nodes = [n for n in self.root.iter() if kind in (n.get("class") or "").split() and n.get("points")]
        pairs = [[pair.split(",") for pair in node.attrib["points"].split()] for node in nodes]
        return [[(self.x(float(a)), self.y(float(b))) for a, b in line] for line in pairs]

    def dots(self, kind: str) -> list[tuple[float, float]]:
        nodes = [n for n in self.root.iter() if (n.get("class") or "").split()[:1] == [kind]]
        return [(self.x(a), self.y(b)) for a, b in map(_middle, nodes)]


def _middle(node: ET.Element) -> tuple[float, float]:
    """Of a ring, or of a shape that was moved to its place."""
    if node.tag == "circle":
        return float(node.attrib["cx"]), float(node.attrib["cy"])
    a, b = node.attrib["transform"].removeprefix("translate(").split(")")[0].split()
    return float(a), float(b)


def _scale(ticks: list[tuple[float, float]], log: bool) -> Callable[[float], float]:
    """From pixels to values, by the first and the last tick."""
    (a, low), (b, high) = ticks[0], ticks[-1]

    def value(pixel: float) -> float:
        share = (pixel - a) / (b - a)
        return float(low * (high / low) ** share) if log else low + share * (high - low)

    return value


def close(points: list[tuple[float, float]], rel: float = 0.02) -> list[Any]:
    return [pytest.approx(point, rel=rel, abs=0.5) for point in points]


def test_a_line_goes_through_its_points_with_its_band_around_them() -> None:
    points = [Point(0, 0.1, 0.05, 0.2), Point(5, 0.5, 0.4, 0.6), Point(10, 1.0, 0.9, 1.0)]
    series = Series("one", 0, points, marks=[Mark(points[1], "best")])
    drawn = Drawing(line_chart("a", even("x", 0, 10), percent("y"), [series]))
    assert drawn.lines() == [close([(0, 10), (5, 50), (10, 100)])]
    assert drawn.lines("band") == [close([(0, 20), (5, 60), (10, 100), (10, 90), (5, 40), (0, 5)])]
    assert drawn.dots("dot") == close([(0, 10), (5, 50), (10, 100)])
    assert drawn.dots("best") == close([(5, 50)])


def test_a_logarithmic_axis_has_equal_factors_equally_far_apart() -> None:
    axis = Axis("steps", [(1, "1"), (100, "100")], 1, 100, log=True)
    assert [axis.place(value) for value in (1, 10, 100)] == pytest.approx([0, 0.5, 1])
    tens = powers("J", [3.0, 2000.0])
    assert [tick[0] for tick in tens.ticks] == pytest.approx([1, 10, 100, 1000, 10_000])
    points = [Point(1, 10.0), Point(10, 1000.0)]
    drawn = Drawing(line_chart("a", axis, tens, [Series("one", 0, points)]), log_x=True, log_y=True)
    assert drawn.lines() == [close([(1, 10), (10, 1000)])]


def test_training_shows_robust_accuracy_and_clean_faintly() -> None:
    drawn = Drawing(training_chart([a_run()], {"mine": 0}).drawing)
    assert drawn.lines("faint") == [close([(1, 90), (2, 80), (3, 95)])]
    robust = [(1, 20), (2, 60), (3, 40)]
    assert drawn.lines() == [close([(1, 90), (2, 80), (3, 95)]), close(robust)]
    assert drawn.dots("dot") == close(robust)
    assert drawn.dots("best") == close([(2, 60)])
    assert sum((node.get("class") or "").startswith("collapse ") for node in drawn.root.iter("path")) == 1


def test_the_jacobian_is_drawn_by_epoch() -> None:
    drawn = Drawing(jacobian_chart([a_run()], {"mine": 0}).drawing, log_y=True)
    assert drawn.lines() == [close([(1, 10), (2, 20), (3, 3000)])]


def test_curves_over_radius_and_steps_have_the_scores() -> None:
    over_radius = Drawing(radius_chart({"mine": a_study()}, {"mine": 0}).drawing)
    (line,) = over_radius.lines()
    assert [x for x, _ in line] == pytest.approx(RADII, abs=0.002)
    assert [y for _, y in line] == pytest.approx([90, 60, 30], abs=0.5)
    over_steps = Drawing(steps_chart({"mine": a_study()}, {"mine": 0}).drawing, log_x=True)
    assert over_steps.lines() == [close([(1, 90), (10, 60), (50, 30)])]


def test_series_are_without_common_folders_by_shape_as_in_static_plots() -> None:
    assert "".join(SHAPES) == figures.MARKERS
    points = [Point(0, 0.1), Point(1, 0.2)]
    series = [Series(f"s{k}", k, points) for k in range(8)]
    root = ET.fromstring(line_chart("a", even("x", 0, 1), percent("y"), series))
    looks = [
        (node.attrib["d"], node.attrib["class"].endswith("dashed"))
        for node in root.iter("path")
        if node.attrib["class"].startswith("dot")
    ]
    assert len(set(looks)) == 8
    for index in range(8):
        (path,) = ET.fromstring(swatch(index))
        assert path.attrib["d"] == looks[2 * index][0]


def test_a_long_line_has_points_too_but_not_all() -> None:
    points = [Point(k, k / 100) for k in range(100)]
    drawn = Drawing(line_chart("a", even("x", 0, 100), percent("y"), [Series("one", 0, points)]))
    assert 20 < len(drawn.dots("dot")) <= MOST_DOTS


def test_the_radius_of_the_runs_is_named_as_the_page_writes_it() -> None:
    study = a_study()
    study.threat = Linf(8 / 255)
    root = ET.fromstring(radius_chart({"mine": study}, {"mine": 0}).drawing)
    (word,) = [node for node in root.iter("text") if node.get("class") == "guide-word"]
    (guide,) = [node for node in root.iter("line") if node.get("class") == "guide"]
    assert word.text == "ε = 8/255"
    assert word.attrib["x"] == guide.attrib["x1"]


def test_charts_have_their_values_as_a_table() -> None:
    one, two = a_study(), a_study()
    two.by_radius = two.by_radius[:2]
    rows = radius_chart({"one": one, "two": two}, {"one": 0, "two": 1}).rows
    assert [at for at, _ in rows] == ["ε = 0", "ε = 0.1", "ε = 0.2"]
    assert [[point and point.value for point in points] for _, points in rows] == [
        ["90.0%", "90.0%"],
        ["60.0%", "60.0%"],
        ["30.0%", None],
    ]
    low, high = SCORES[1].interval
    assert rows[1][1][0] is not None
    assert rows[1][1][0].bounds == f"[{100 * low:.1f}, {100 * high:.1f}]"
    course = training_chart([a_run()], {"mine": 0})
    assert [each.label for each in course.series] == ["mine, clean", "mine, robust"]
    assert [at for at, _ in course.rows] == ["epoch 1", "epoch 2", "epoch 3"]
    assert [point and point.value for point in course.rows[2][1]] == ["95.0%", "40.0%"]


def test_static_plots_have_the_same_numbers() -> None:
    studies, looks = {"mine": a_study()}, figures._looks(["mine"])
    for draw, along in ((figures.radius, RADII), (figures.steps, STEPS)):
        (axes,) = draw(studies, looks).axes
        line = axes.lines[0]
        assert (list(line.get_xdata()), list(line.get_ydata())) == (list(along), [90, 60, 30])
        band = axes.collections[0].get_paths()[0].vertices
        ends = [100 * end for score in SCORES for end in score.interval]
        assert {round(y, 6) for y in band[:, 1]} == {round(end, 6) for end in ends}
    left, right = figures.training([a_run()], looks).axes
    assert [list(line.get_ydata()) for line in left.lines] == [[20, 60, 40], [40]]
    assert [list(line.get_ydata()) for line in right.lines] == [[10, 20, 3000], [3000]]
