"""The pages show the stored measurements: every table and figure is rendered again from its JSON."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import matplotlib
import pytest

from atlas.reports import plots
from benchmarks import attack, compare_steps, growth, scale, step, time_to_accuracy
from benchmarks.tables import markdown, markers_of
from scripts import cluster_cost
from tests.published import ROOT, between

pytestmark = pytest.mark.skipif(not (ROOT / "docs").exists(), reason="a source tree without its docs")
PARTS = ("half robust", "large", "circles", "robust", "stages")
TABLES: dict[str, tuple[str, ModuleType]] = {
    "step": ("docs/speed.md", step),
    "step wrn-28-8": ("docs/speed.md", step),
    "peers cnn": ("docs/speed.md", compare_steps),
    "peers wrn-28-8": ("docs/speed.md", compare_steps),
    "growth": ("docs/speed.md", growth),
    "time": ("docs/speed.md", time_to_accuracy),
    "scale": ("docs/scale.md", scale),
    **{f"attack {part}": ("docs/speed.md", attack) for part in PARTS},
    "cost": ("docs/cluster-cost.md", cluster_cost),
}
FIGURES: dict[str, tuple[str, ModuleType]] = {
    "speed-growth": ("growth", growth),
    "speed-time": ("time", time_to_accuracy),
    "cluster-cost": ("cost", cluster_cost),
}


def stored(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((ROOT / f"results/bench-{name.replace(' ', '-')}.json").read_text())
    return found


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_those_of_the_stored_measurements(name: str) -> None:
    page, module = TABLES[name]
    markers = markers_of("cluster cost" if name == "cost" else f"benchmarks {name}")
    assert between(page, *markers) == markdown(module.blocks(stored(name)))


@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_are_those_of_the_stored_measurements(name: str, tmp_path: Path) -> None:
    data, module = FIGURES[name]
    shown, again = ROOT / f"docs/{name}.svg", tmp_path / "again.svg"
    with plots.style():
        again.write_bytes(plots.rendered(module.draw(stored(data)), "svg"))
    assert words(again) == words(shown)
    if f"matplotlib=={matplotlib.__version__}\n" in (ROOT / "constraints.txt").read_text():
        assert again.read_bytes() == shown.read_bytes()


def words(picture: Path) -> list[str]:
    return [e.text or "" for e in ElementTree.parse(picture).iter() if e.tag.endswith("}text")]


def test_what_the_page_says_of_the_busiest_run() -> None:
    kept, busy = (stored(name)["models"] for name in ("scale", "scale busy"))
    assert isinstance(kept, list)
    assert isinstance(busy, list)
    for quiet, loud in zip(kept, busy, strict=True):
        assert quiet["elsewhere"] < 0.1 < loud["elsewhere"]
        for one, other in zip(quiet["methods"], loud["methods"], strict=True):
            assert other["together_over_alone"][1] < one["together_over_alone"][1]
            assert other["threads_over_alone"][1] < 1
