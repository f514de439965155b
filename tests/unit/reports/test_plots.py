"""Plots: the files that papers need, and charts on a page, read back from the drawing by their ticks."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import matplotlib
import pytest
from matplotlib.figure import Figure
from PIL import Image

from atlas.evaluation import Score
from atlas.reports import plots
from atlas.reports.plots import Chart, Curve, paper_figure, study_charts, swatch, training_charts
from atlas.reports.tables import Cell
from atlas.threat import Linf

EPOCHS = [(0.2, 0.9, 10.0), (0.6, 0.8, 20.0), (0.4, 0.95, 3000.0)]
"""Robust and clean accuracy and J² of three epochs: the second is the best, the third collapses."""
SCORES = [Score(90, 100), Score(60, 100), Score(30, 100)]
RADII, STEPS = (0.0, 0.1, 0.2), (1, 10, 50)


def a_run(name: str = "mine") -> Any:
    epochs = [
        {"epoch": k, "val_robust": robust, "val_clean": clean, "jacobian": jacobian}
        for k, (robust, clean, jacobian) in enumerate(EPOCHS)
    ]
    return SimpleNamespace(name=name, epochs=epochs, best=epochs[1], collapse=epochs[2])


def a_study(eps: float = 0.1) -> Any:
    """With the accuracies above by radius and by steps."""
    by_radius, by_steps = (list(zip(x, SCORES, strict=True)) for x in (RADII, STEPS))
    return SimpleNamespace(reasons=(), threat=Linf(eps), by_radius=by_radius, by_steps=by_steps)


def a_chart(curves: list[Curve], last: float = 10, **rest: Any) -> Chart:
    return Chart("a", "A chart", "x", "y", curves, str, (0, last), **rest)


def percents(*values: float, width: float = 0.0) -> list[tuple[float, Cell]]:
    ends = [(v - width, v + width) if width else None for v in values]
    return [(float(k), Cell(f"{v}%", v, end)) for k, (v, end) in enumerate(zip(values, ends, strict=True))]


class Drawing:
    """The SVG of a chart, in units of its axes."""

    def __init__(self, chart: Chart, log_x: bool = False, log_y: bool = False) -> None:
        self.root = ET.fromstring(chart.svg)
        ticks = [node for node in self.root.iter("text") if re.fullmatch(r"[\d.]+", node.text or "")]
        down = [node for node in ticks if node.get("text-anchor") == "end"]
        along = [node for node in ticks if node.get("text-anchor") == "middle"]
        self.x = _scale([(float(node.attrib["x"]), float(node.text or "")) for node in along], log_x)
        self.y = _scale([(float(node.attrib["y"]) - 4.6, float(node.text or "")) for node in down], log_y)

    def of_class(self, kind: str) -> list[ET.Element]:
        return [node for node in self.root.iter("g") if node.get("class") == kind]

    def lines(self, kind: str = "line", below: float = 0.0) -> list[list[tuple[float, float]]]:
        """The corners of paths; those of bands are drawn from `below`."""
        found = []
        for node in self.of_class(kind):
            path = next(node.iter("path"))
            numbers = [float(text) for text in re.findall(r"-?[\d.]+", path.attrib["d"])]
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            found.append([(self.x(a), self.y(b + below)) for a, b in pairs])
        return found

    def dots(self, kind: str = "line") -> list[tuple[float, float]]:
        marks = [mark for node in self.of_class(kind) for mark in node.iter("use")]
        return [(self.x(float(m.attrib["x"])), self.y(float(m.attrib["y"]))) for m in marks]


def _scale(ticks: list[tuple[float, float]], log: bool) -> Callable[[float], float]:
    """From pixels to values, by the first and the last tick."""
    (a, low), (b, high) = ticks[0], ticks[-1]

    def value(pixel: float) -> float:
        share = (pixel - a) / (b - a)
        return float(low * (high / low) ** share) if log else low + share * (high - low)

    return value


def close(points: list[tuple[float, float]]) -> list[Any]:
    return [pytest.approx(point, rel=0.02, abs=0.5) for point in points]


def test_a_curve_goes_through_its_points_with_its_band_around_them() -> None:
    drawn = Drawing(a_chart([Curve("one", 0, percents(20, 50, 80, width=5), marks={"best": 1.0})], 2))
    points = [(0, 20), (1, 50), (2, 80)]
    assert drawn.lines() == [close(points)]
    assert drawn.dots() == close(points)
    assert drawn.dots("best") == close([(1, 50)])
    (band,) = drawn.lines("band", below=280)
    assert {(round(x), round(y)) for x, y in band} == {(k, y + e) for k, y in points for e in (-5, 5)}


def test_many_curves_have_no_bands() -> None:
    for count, bands in ((4, 4), (5, 0)):
        curves = [Curve(f"s{k}", k, percents(40, 50, width=5)) for k in range(count)]
        assert len(Drawing(a_chart(curves, 1)).of_class("band")) == bands


def test_what_has_no_value_is_not_drawn() -> None:
    points = percents(50, 60, 90)
    points[1] = (1.0, Cell("not finite"))
    assert Drawing(a_chart([Curve("one", 0, points)], 2)).dots() == close([(0, 50), (2, 90)])
    run = a_run()
    run.epochs[0]["jacobian"] = float("nan")
    norm = training_charts([run], {"mine": 0})[1]
    assert Drawing(norm, log_y=True).dots() == close([(2, 20), (3, 3000)])
    assert norm.values.rows[0][1].text == "not finite"


def test_training_shows_robust_accuracy_and_clean_faintly() -> None:
    accuracy, norm = training_charts([a_run()], {"mine": 0})
    drawn, robust = Drawing(accuracy), [(1, 20), (2, 60), (3, 40)]
    assert drawn.lines("faint") == [close([(1, 90), (2, 80), (3, 95)])]
    assert drawn.lines() == [close(robust)]
    assert drawn.dots() == close(robust)
    assert drawn.dots("best") == close([(2, 60)])
    assert drawn.dots("collapse") == close([(3, 40)])
    assert "collapse" in drawn.root.itertext()
    assert Drawing(norm, log_y=True).lines() == [close([(1, 10), (2, 20), (3, 3000)])]


def test_curves_over_radius_and_steps_have_the_scores() -> None:
    radius, steps = study_charts({"mine": a_study()}, {"mine": 0})
    (line,) = Drawing(radius).lines()
    assert [x for x, _ in line] == pytest.approx(RADII, abs=0.002)
    assert [y for _, y in line] == pytest.approx([90, 60, 30], abs=0.5)
    assert Drawing(steps, log_x=True).lines() == [close([(1, 90), (10, 60), (50, 30)])]


def test_a_narrow_range_of_accuracies_fills_the_axis() -> None:
    study = a_study()
    study.by_steps = [(k, Score(9500, 10000)) for k in STEPS]
    figure = paper_figure(study_charts({"mine": study}, {"mine": 0})[1:])
    assert figure.axes[0].get_ylim() == (90, 100)


def test_a_marker_says_what_it_stands_for() -> None:
    radius, _ = study_charts({"<mine>": a_study()}, {"<mine>": 0})
    hints = [node.text for node in ET.fromstring(radius.svg).iter("title")]
    assert hints[1] == f"<mine>: ε = 0.1: 60.0% {Cell.of(SCORES[1]).bounds}"
    accuracy, _ = training_charts([a_run()], {"mine": 0})
    titles = [node.text for node in ET.fromstring(accuracy.svg).iter("title")]
    assert {"mine, robust, best: epoch 2: 60.0%", "mine, robust, collapse: epoch 3: 40.0%"} < set(titles)


def test_the_radius_of_the_runs_is_named_as_the_page_writes_it() -> None:
    root = Drawing(study_charts({"mine": a_study(8 / 255)}, {"mine": 0})[0])
    (text,), (guide,) = root.of_class("guide-text"), root.of_class("guide")
    assert next(text.iter("text")).text == "ε = 8/255"
    assert next(guide.iter("path")).attrib["d"].startswith(f"M{next(text.iter('text')).attrib['x']} ")


def test_curves_differ_by_marker_colour_and_dashes_as_do_their_swatches() -> None:
    root = ET.fromstring(a_chart([Curve(f"s{k}", k, percents(10, 20)) for k in range(8)], 1).svg)
    lines = [node for node in root.iter("g") if node.get("class") == "line"]
    shapes = [[node.get("d") for node in line.iter("path")][1] for line in lines]
    colours = [next(line.iter("path")).get("stroke") for line in lines]
    dashed = [next(line.iter("path")).get("stroke-dasharray") is not None for line in lines]
    assert len(set(zip(shapes, colours, dashed, strict=True))) == 8
    assert colours == [*(f"var(--c{k})" for k in range(7)), "var(--c0)"]
    assert dashed == [False] * 7 + [True]
    assert len({swatch(k) for k in range(8)}) == 8
    assert 'class="swatch s0 dashed"' in swatch(7)


def test_a_long_curve_has_markers_too_but_not_at_every_point() -> None:
    drawn = Drawing(a_chart([Curve("one", 0, percents(*range(100)))], 100))
    assert 20 < len(drawn.dots()) <= plots.MOST_DOTS


def test_charts_have_their_values_as_a_table() -> None:
    one, two = a_study(), a_study()
    two.by_radius = two.by_radius[:2]
    table = study_charts({"one": one, "two": two}, {"one": 0, "two": 1})[0].values
    assert table.columns == ("ε", "one", "two")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["ε = 0", "90.0%", "90.0%"],
        ["ε = 0.1", "60.0%", "60.0%"],
        ["ε = 0.2", "30.0%", ""],
    ]
    low, high = SCORES[1].interval
    assert table.rows[1][1].bounds == f"[{100 * low:.1f}, {100 * high:.1f}]"
    accuracy = training_charts([a_run()], {"mine": 0})[0].values
    assert accuracy.columns == ("epoch", "mine, clean", "mine, robust")
    assert [cell.text for cell in accuracy.rows[2]] == ["epoch 3", "95.0%", "40.0%"]


def test_a_chart_fits_the_policy_of_the_page_beside_other_charts() -> None:
    """No style, no script, no fonts of its own; every id once, and every reference within the page."""
    charts = [
        *study_charts({"mine": a_study()}, {"mine": 0}, "-1"),
        *study_charts({"mine": a_study()}, {"mine": 0}, "-2"),
        *training_charts([a_run()], {"mine": 0}),
    ]
    roots = [ET.fromstring(chart.svg) for chart in charts]
    nodes = [node for root in roots for node in root.iter()]
    assert {node.tag for node in nodes} == {"svg", "defs", "g", "path", "use", "text", "title"}
    assert not {"style", "clip-path", "font"} & {key for node in nodes for key in node.attrib}
    ids = [node.attrib["id"] for node in nodes if "id" in node.attrib]
    assert len(ids) == len(set(ids))
    assert {node.attrib["href"] for node in nodes if node.tag == "use"} <= {f"#{known}" for known in ids}
    colours = {node.get(key, "none") for node in nodes for key in ("fill", "stroke")}
    assert all(colour == "none" or colour.startswith("var(--") for colour in colours)
    assert [(root.get("role"), root.get("aria-label")) for root in roots] == [
        ("img", c.title) for c in charts
    ]
    assert [chart.svg for chart in charts] == [chart.svg for chart in charts]


def test_plots_for_papers_have_the_same_numbers() -> None:
    for chart, along in zip(study_charts({"mine": a_study()}, {"mine": 0}), (RADII, STEPS), strict=True):
        (axes,) = paper_figure([chart]).axes
        line = axes.lines[0]
        assert (list(line.get_xdata()), list(line.get_ydata())) == (list(along), [90, 60, 30])
        band = axes.collections[0].get_paths()[0].vertices
        ends = [100 * end for score in SCORES for end in score.interval]
        assert {round(y, 6) for y in band[:, 1]} == {round(end, 6) for end in ends}
    left, right = paper_figure(training_charts([a_run()], {"mine": 0})).axes
    assert [list(line.get_ydata()) for line in left.lines] == [[90, 80, 95], [20, 60, 40], [60], [40]]
    assert [list(line.get_ydata()) for line in right.lines] == [[10, 20, 3000], [20], [3000]]


def drawn(name: str) -> Figure:
    with plots.style():
        figure, axes = plots.subplots()
        axes.plot([1, 10, 100], [1, 3, 2], label=plots.label(name))
        axes.set_xscale("log")
        axes.legend()
    return figure


def test_three_files_the_same_each_time(tmp_path: Path) -> None:
    paths = plots.save(drawn("ATLAS"), tmp_path / "new" / "curve")
    assert [path.name for path in paths] == ["curve.pdf", "curve.svg", "curve.png"]
    before = [path.read_bytes() for path in paths]
    plots.save(drawn("ATLAS"), tmp_path / "new" / "curve")
    assert [path.read_bytes() for path in paths] == before
    assert b"/TrueType" in before[0] or b"/Type0" in before[0]  # and no Type 3 font
    assert b"/Type3" not in before[0]
    assert Image.open(paths[2]).width == pytest.approx(plots.SINGLE * 200, abs=2)


@pytest.mark.parametrize("name", ["<script>", "_hidden", "$x_1", "a $broken{$ b", "back\\slash"])
def test_text_is_text_whatever_it_says(tmp_path: Path, name: str) -> None:
    svg = plots.save(drawn(name), tmp_path / "curve")[1]
    texts = ["".join(node.itertext()).strip() for node in ET.parse(svg).iter() if node.tag.endswith("text")]
    assert name in [text.strip("\N{THIN SPACE} ") for text in texts]


def test_what_was_set_comes_back() -> None:
    before = dict(matplotlib.rcParams)
    drawn("x")
    assert a_chart([Curve("one", 0, percents(10, 20))]).svg
    assert dict(matplotlib.rcParams) == before


def by_steps(names: list[str]) -> Figure:
    colours = {name: k for k, name in enumerate(names)}
    figure = paper_figure(study_charts({name: a_study() for name in names}, colours)[1:])
    plots.rendered(figure, "png")
    return figure


def by_epoch(names: list[str]) -> Figure:
    figure = paper_figure(training_charts([a_run(n) for n in names], {n: k for k, n in enumerate(names)}))
    plots.rendered(figure, "png")
    return figure


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("draw", [by_steps, by_epoch])
@pytest.mark.parametrize("long", ["", "a" * 34, "a" * 95, "$" * 250])
def test_names_of_any_length_leave_the_plot_as_it_is(draw: Callable[[list[str]], Figure], long: str) -> None:
    figure = draw([f"{k}{long}{k}" for k in range(5)])
    (legend,) = figure.legends
    box, page = legend.get_window_extent(), figure.bbox
    assert page.x0 <= box.x0 < box.x1 <= page.x1
    for axes in figure.axes:
        assert not box.overlaps(axes.get_window_extent())
        assert axes.get_window_extent().height > 0.5 * plots.SINGLE * 0.72 * figure.dpi
    assert len({text.get_text() for text in legend.get_texts()}) == 5


@pytest.mark.filterwarnings("error")
def test_characters_that_the_font_lacks_are_no_warning() -> None:
    assert by_steps(["模型", "模" * 100]).legends


def test_long_names_lose_their_middle_and_stay_different() -> None:
    same = [f"{'a' * 50}{k}{'b' * 50}" for k in range(2)]
    labels = [text.get_text() for text in by_steps(["short", *same]).legends[0].get_texts()]
    assert labels == ["short", *(f"{'a' * 20}…{'b' * 19} ({k})" for k in (2, 3))]


def test_no_display_and_no_pyplot() -> None:
    code = "import sys, atlas.reports.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
