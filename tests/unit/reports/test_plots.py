"""Plots: the files that papers need, whatever a run is called."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure
from PIL import Image

from atlas.evaluation import Score
from atlas.reports import figures, plots


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
    texts = [
        "".join(node.itertext()).strip()
        for node in ElementTree.parse(svg).iter()
        if node.tag.endswith("text")
    ]
    assert name in [text.strip("\N{THIN SPACE} ") for text in texts]


def test_what_was_set_comes_back() -> None:
    before = dict(matplotlib.rcParams)
    drawn("x")
    assert dict(matplotlib.rcParams) == before


def by_steps(names: list[str]) -> Figure:
    study = SimpleNamespace(by_steps=[(k, Score(9, 10)) for k in (1, 50)])
    figure = figures.steps(dict.fromkeys(names, study), figures._looks(names))  # type: ignore[arg-type]
    plots.rendered(figure, "png")
    return figure


def by_epoch(names: list[str]) -> Figure:
    epochs = [SimpleNamespace(number=k, robust=0.5, jacobian=1.0 + k) for k in (1, 2)]
    runs = [SimpleNamespace(name=name, epochs=epochs, collapse=None) for name in names]
    figure = figures.training(runs, figures._looks(names))  # type: ignore[arg-type]
    plots.rendered(figure, "png")
    return figure


@pytest.mark.parametrize(("count", "more", "inside"), [(3, "", True), (7, "", False), (2, "-" * 30, False)])
def test_a_long_legend_hides_no_curve(count: int, more: str, inside: bool) -> None:
    names = [f"model {k}{more}" for k in range(count)]
    figure = by_steps(names)
    (axes,) = figure.axes
    legend = axes.get_legend() or figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == names
    assert legend.get_window_extent().overlaps(axes.get_window_extent()) == inside
    assert axes.get_window_extent().height > 0.5 * plots.SINGLE * 0.72 * figure.dpi


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("draw", [by_steps, by_epoch])
@pytest.mark.parametrize("long", ["a" * 34, "W" * 95, "$" * 250])
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


def test_long_names_lose_their_middle_and_stay_without_common_folders() -> None:
    same = [f"{'a' * 50}{k}{'b' * 50}" for k in range(2)]
    labels = [look["label"] for look in figures._looks(["short", *same]).values()]
    assert labels == ["short", *(f"{'a' * 20}…{'b' * 19} ({k})" for k in (2, 3))]


def test_no_display_and_no_pyplot() -> None:
    code = "import sys, atlas.reports.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
