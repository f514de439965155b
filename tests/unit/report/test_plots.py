"""Plots: the files that papers need, whatever a run is called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure
from PIL import Image

from atlas.evaluation import Score
from atlas.report import figures, plots


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


@pytest.mark.parametrize("count", [3, 7])
def test_a_long_legend_hides_no_curve(count: int) -> None:
    study = SimpleNamespace(by_steps=[(k, Score(9, 10)) for k in (1, 50)])
    looks = {f"model {k}": figures._look(k) for k in range(count)}
    figure = figures.steps(dict.fromkeys(looks, study), looks)  # type: ignore[arg-type]
    plots.rendered(figure, "png")
    (axes,) = figure.axes
    legend = axes.get_legend() or figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == list(looks)
    assert legend.get_window_extent().overlaps(axes.get_window_extent()) == (count <= 4)
    assert axes.get_window_extent().height > 0.5 * plots.SINGLE * 0.72 * figure.dpi


def test_no_display_and_no_pyplot() -> None:
    code = "import sys, atlas.report.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
