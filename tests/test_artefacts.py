"""The artefacts in results/: each number is counted right, and is beside the paper's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atlas_paper import paper
from tests.published import ROOT, script

ARTEFACTS = sorted(
    path.parent.name
    for path in (ROOT / "results").glob("*/*.json")
    if path.parent.name.startswith(f"{path.stem}-")
)
"""Folders in results/ that `atlas reproduce` wrote."""
pytestmark = pytest.mark.skipif(not (ROOT / "results").exists(), reason="no results here")
FIGURES = {"loss-curves-cpu", "collapse-cpu"}
"""Those whose table is none of cells."""


def whole(folder: str) -> dict[str, Any]:
    (path,) = (ROOT / "results" / folder).glob("*.json")
    return dict(json.loads(path.read_text()))


@pytest.mark.parametrize("folder", sorted(set(ARTEFACTS) - FIGURES))
def test_every_number_is_counted_right(folder: str) -> None:
    """The mean over seeds of the share of its images, the difference, and the paper's own number."""
    for row in whole(folder)["rows"]:
        for column, cell in row["cells"].items():
            assert cell["paper"] == paper.number(row["task"], row["key"], column)
            if shares := [100 * seed["k"] / seed["n"] for seed in cell["seeds"]]:
                assert cell["ours"] == pytest.approx(sum(shares) / len(shares))
            if cell["difference"] is not None:
                assert cell["difference"] == pytest.approx(cell["ours"] - cell["paper"])


def test_an_artefact_is_kept_with_its_runs(tmp_path: Path) -> None:
    made, run = tmp_path / "results/mine-cpu", tmp_path / "runs/mnist-adv-1-0123abcd"
    table = {
        "rows": [{"runs": [{"config_hash": "0123abcd4567"}, {"config_hash": "trained in another place"}]}]
    }
    files = {made / "mine.json": json.dumps(table), made / "mine.svg": "<svg/>", made / "mine.pdf": ""}
    files |= {run / name: name for name in ("config.json", "metrics.jsonl", "origin.json", "timing.jsonl")}
    files |= {run / "best.safetensors": "", run / "state.safetensors": ""}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    keep, kept = script("results").keep_artefact, tmp_path / "kept"
    keep(made, kept, weights=False)
    small = {f"mine-cpu/runs/mnist-adv-1-0123abcd/{path.name}" for path in run.glob("*.json*")}
    expected = {"mine-cpu/mine.json", "mine-cpu/mine.svg", *small}
    assert {str(path.relative_to(kept)) for path in kept.rglob("*.*")} == expected
    keep(made, kept, weights=True)
    expected.add("mine-cpu/runs/mnist-adv-1-0123abcd/best.safetensors")
    assert {str(path.relative_to(kept)) for path in kept.rglob("*.*")} == expected
