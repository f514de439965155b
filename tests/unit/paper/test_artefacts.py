"""Every artefact at scale smoke, from nothing to its files, and Table 1 recounted from what attacks left."""

from __future__ import annotations

import csv
import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from atlas_paper import paper
from atlas_paper.artefacts import ARTEFACTS
from atlas_paper.cells import TIME
from atlas_paper.request import Request

Smoke = Callable[..., dict[str, Any]]
WHENCE = {"k", "n", "seed", "config_hash", "train", "train_commit", "train_seconds", "network"}
SURVIVED, SKIPPED = -2, -4
"""As the files of an evaluation have them."""


def test_the_artefacts_of_the_paper_are_all_there() -> None:
    tables = {f"table1-{data}" for data in ("mnist", "cifar10", "cifar100")}
    tables |= {"ablation-cifar10", "ablation-cifar100", "tradesjac", "rays-autoattack", "five-step-adv"}
    figures = {"loss-curves", "step-size", "alpha-sweep", "beta-sweep", "atlasg-vs-trades", "collapse"}
    assert set(ARTEFACTS) == tables | figures | {"jac-sweep", "trades-sweep", "atlas-grid"}


@pytest.mark.parametrize("name", ARTEFACTS)
def test_from_nothing_to_its_files(smoke: Smoke, workspace: Path, name: str) -> None:
    whole = smoke(name)
    folder = workspace / "results" / f"{name}-smoke"
    assert whole["missing"] == []
    for ending in ("md", "json", "png"):
        assert (folder / f"{name}.{ending}").stat().st_size > 200
    assert list(folder.glob("*.tex"))
    assert list(folder.glob("*.csv"))
    assert {row["key"] for row in whole["rows"]} == {r.key for r in ARTEFACTS[name].rows if r.smoke}
    for row in whole["rows"]:
        for column, cell in row["cells"].items():
            assert cell["paper"] == paper.number(row["task"], known(name, row["key"]), column)
            assert cell["ours"] is not None
            assert column == TIME or set(cell["seeds"][0]) >= WHENCE


def known(name: str, key: str) -> str:
    """The paper's row for a row of an artefact."""
    (row,) = [row for row in ARTEFACTS[name].rows if row.key == key]
    return row.paper


@pytest.fixture(scope="module")
def runs_by_hash(workspace: Path) -> Callable[[str], Path]:
    def find(wanted: str) -> Path:
        for path in (workspace / "runs").glob("*/config.json"):
            if json.loads(path.read_text())["hash"] == wanted:
                return path.parent
        raise AssertionError(wanted)

    return find


def counted(workspace: Path, run: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(ids, right) of each column, from the arrays that its attacks left, by plain numpy."""
    found, clean = {}, []
    for folder in (workspace / "evaluations" / run.name).iterdir():
        with np.load(folder / "clean.npz") as arrays:
            ids, right = arrays["ids"], arrays["right"]
        clean.append((ids, right))
        for path in sorted(folder.glob("attack-*.npz")):
            with np.load(path) as arrays:
                # In a chain an attack is only run on what those before it have left.
                right = right & np.isin(arrays["attempt"], (SURVIVED, SKIPPED))
        found[folder.name.rpartition("-")[0]] = (ids, right)
    found["clean"] = max(clean, key=lambda pair: len(pair[0]))
    shared = sorted(set.intersection(*(set(ids.tolist()) for ids, _ in found.values())))
    worst = [all(right[ids == k].all() for ids, right in found.values()) for k in shared]
    return found | {"worst-case": (np.array(shared), np.array(worst))}


def test_every_cell_of_table_1_is_what_the_evaluations_hold(
    smoke: Smoke, workspace: Path, runs_by_hash: Callable[[str], Path]
) -> None:
    whole = smoke("table1-mnist")
    verdicts = set()
    for row in whole["rows"]:
        columns = counted(workspace, runs_by_hash(row["runs"][0]["config_hash"]))
        for label, cell in row["cells"].items():
            if label == TIME:
                continue
            ids, right = columns[label.lower().replace(" ", "-")]
            (seed,) = cell["seeds"]
            assert (seed["k"], seed["n"]) == (right.sum(), len(ids)), (row["key"], label)
            packed = np.frombuffer(b64decode(seed["right"]), np.uint8)
            assert np.array_equal(np.unpackbits(packed, count=len(ids)), right[ids.argsort()])
            assert cell["ours"] == pytest.approx(100 * right.sum() / len(ids))
            interval = binomtest(int(right.sum()), len(ids)).proportion_ci(method="wilson")
            assert cell["interval"] == pytest.approx([100 * interval.low, 100 * interval.high])
            difference = None if cell["paper"] is None else pytest.approx(cell["ours"] - cell["paper"])
            assert cell["difference"] == difference
            verdicts.add((seed["k"], seed["n"]))
    assert len(verdicts) > 6, "not one number for all cells"


@pytest.mark.parametrize(
    ("part", "words", "steps"), [("paired", "one", 1), ("paired-multi-step", "twenty", 20)]
)
def test_the_paired_tests_of_table_1(
    part: str, words: str, steps: int, smoke: Smoke, workspace: Path, runs_by_hash: Callable[[str], Path]
) -> None:
    whole = smoke("table1-mnist")
    columns = {r["key"]: counted(workspace, runs_by_hash(r["runs"][0]["config_hash"])) for r in whole["rows"]}
    lines = whole["tables"][part]["rows"]
    against = {f"{words}-step ADV": f"adv-{steps}", f"{words}-step TRADES": f"trades-{steps}"}
    assert {(line[0], line[1]) for line in lines} == {
        (attack, other)
        for attack in ("PGD-1000", "Un-T", "Multi-T", "AutoAttack", "worst case")
        for other in against
    }
    for attack, other, _, n, only_a, only_b, difference, p in lines:
        key = attack.lower().replace(" ", "-")
        a, b = (columns[row][key][1] for row in (f"atlas-{steps}", against[other]))
        assert (int(n), int(only_a), int(only_b)) == (len(a), (a & ~b).sum(), (b & ~a).sum())
        assert difference["value"] == pytest.approx(100 * (a.mean() - b.mean()))
        disagree = int(only_a) + int(only_b)
        assert p["value"] == pytest.approx(binomtest(int(only_a), disagree).pvalue if disagree else 1.0)


def test_the_table_is_the_same_in_every_form(smoke: Smoke, workspace: Path) -> None:
    whole = smoke("ablation-cifar10")
    folder = workspace / "results/ablation-cifar10-smoke"
    with (folder / "ablation-cifar10.csv").open(newline="") as file:
        listed = {(line["row"], line["column"]): line for line in csv.DictReader(file)}
    markdown, latex = ((folder / f"ablation-cifar10.{e}").read_text() for e in ("md", "tex"))
    assert "one-step ATLAS-l" in latex
    for row in whole["rows"]:
        assert f"| {row['label']} | cnn-small | paper |" in markdown
        for column, cell in row["cells"].items():
            line = listed[row["key"], column]
            assert float(line["ours"]) == pytest.approx(cell["ours"])
            assert (float(line["paper"]) if line["paper"] else None) == cell["paper"]
            if column != TIME:
                shown = f"{cell['ours']:.2f} [{cell['interval'][0]:.1f}, {cell['interval'][1]:.1f}]"
                assert shown in markdown
                low, high = cell["interval"]
                assert f"{cell['ours']:.2f}" in latex
                assert f"{{\\scriptsize [{low:.1f}, {high:.1f}]}}" in latex
            if cell["difference"] is not None:
                assert f"{cell['difference']:+.2f}" in markdown


def test_an_artefact_that_is_there_is_not_made_again(smoke: Smoke, workspace: Path) -> None:
    def times() -> dict[Path, int]:
        parts = [workspace / "runs", workspace / "evaluations"]
        return {path: path.stat().st_mtime_ns for part in parts for path in part.rglob("*")}

    before, files = smoke("five-step-adv"), times()
    assert smoke("five-step-adv") == before
    assert times() == files


def test_artefacts_share_runs() -> None:
    """The rows of the ablation are those of Table 1 and of the sweeps, wherever the settings are."""
    requests = {name: Request(artefact, "cpu") for name, artefact in ARTEFACTS.items()}
    ours = {name: {row.key: r.run(row, 0).hash for row in r.rows} for name, r in requests.items()}
    table, ablation = ours["table1-cifar10"], ours["ablation-cifar10"]
    assert {k: table[k] for k in ("adv-1", "trades-1", "atlas-1")}.items() <= ablation.items()
    assert ablation["atlas-l-1"] == ours["alpha-sweep"]["cifar10-atlas-l-alpha=0.0002"]
    assert ablation["atlas-g-1"] == ours["beta-sweep"]["cifar10-atlas-g-beta=5"]
    assert table["jac"] == ours["jac-sweep"]["cifar10-jac-alpha=0.5"]
    assert table["atlas-1"] == ours["atlas-grid"]["cifar10-atlas-alpha=0.0002-beta=5"]
    assert table["adv-1"] == ours["step-size"]["cifar10-adv-plateau=2-relative_step=1.25"]
    assert table["atlas-1"] == ours["collapse"]["cifar10-stable"]
    assert set(ours["beta-sweep"].values()) < set(ours["atlasg-vs-trades"].values())
