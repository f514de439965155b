"""What is in results/, and that the tables of README and docs are rendered from it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from atlas import presets
from atlas.attacks import Untargeted
from atlas.config import fingerprint
from atlas.evaluation.evaluation_folder import load_report
from atlas.presets import load_preset
from atlas.training import RunConfig
from benchmarks.tables import markers_of
from scripts.result_tables import TABLES
from tests.published import ROOT, between, script

OPTIMIZERS = "results/attacks/untargeted-optimizers.json"
pytestmark = pytest.mark.skipif(not (ROOT / "results").exists(), reason="no results here")


def shown(page: str, marker: str) -> str:
    return between(page, f"<!-- begin: {marker} -->", f"<!-- end: {marker} -->")


def test_results_stay_small() -> None:
    assert sum(path.stat().st_size for path in (ROOT / "results").rglob("*") if path.is_file()) < 10_000_000


TUNED = sorted(path.name for path in (ROOT / "results/tune-mnist").glob("*"))


@pytest.mark.parametrize("row", TUNED)
def test_a_tuned_preset_is_the_best_of_its_search(row: str) -> None:
    """The first trial of the table, which is sorted by the score, on all images and three times as long.

    Where that diverges, by its validation images, the second.
    """
    folder = ROOT / "results/tune-mnist" / row
    long = RunConfig.of(load_preset(f"mnist-small-{row}-tuned")[1])
    assert (long.data, long.training.schedule.epochs) == ("mnist", 30)
    schedule = replace(long.training.schedule, epochs=10, ramp_epochs=long.training.schedule.ramp_epochs // 3)
    found = replace(long, data="mnist:20000", training=replace(long.training, schedule=schedule))
    table = json.loads((folder / "table.json").read_text())
    assert "12 of 12 trials" in table["title"]
    diverged = folder / "diverged.jsonl"
    trial = dict(zip(table["columns"], table["rows"][diverged.exists()], strict=True))
    assert trial["config"] == fingerprint(found.table())
    if diverged.exists():
        records = map(json.loads, diverged.read_text().splitlines())
        assert [record["val_clean"] for record in records if record["kind"] == "epoch"][-1] < 0.15


@pytest.mark.parametrize("row", TUNED)
def test_the_best_of_a_search_is_kept_as_a_preset(row: str) -> None:
    folder = ROOT / "results/tune-mnist" / row
    best = RunConfig.of(load_preset(str(folder / "best.toml"))[1])
    assert json.loads((folder / "table.json").read_text())["rows"][0][-2] == fingerprint(best.table())


def test_every_tuned_preset_has_its_search() -> None:
    tuned = [name for name in presets.names() if name.endswith("-tuned")]
    assert [f"mnist-small-{row}-tuned" for row in TUNED] == sorted(tuned)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_rendered(name: str) -> None:
    """What the site shows; a directive that names no table ends its build."""
    text = TABLES[name]()
    assert text.count("\n") > 2
    assert name.startswith("figure") or max(line.count("|") for line in text.splitlines()) > 2


def test_the_table_of_the_readme() -> None:
    assert between("README.md", *markers_of("results")) == TABLES["readme"]()


def test_quick_sees_through_disguises_and_leaves_honest_models_valid() -> None:
    module = script("disguises")
    rows = json.loads((ROOT / "results/disguises.json").read_text())["rows"]
    disguised, honest = ([row for row in rows if bool(row["disguise"]) is kind] for kind in (True, False))
    assert len({row["disguise"] for row in disguised}) >= 40
    assert len({row["network"] for row in honest}) >= 8
    assert all(module.passes(row) for row in disguised)
    assert not any(row["fatal"] for row in honest)


@pytest.mark.parametrize("kind", ["linf", "l2"])
def test_the_default_of_un_t_found_most(kind: str) -> None:
    """Of all models together, and of the schedules that `Untargeted` has."""
    measured, models = script("untargeted_optimizers"), json.loads((ROOT / OPTIMIZERS).read_text())
    right = {case: sum(n for _, n in each) for case, each in measured.cases(models, kind)}
    offered = [case for case in right if case[1] in ("constant", "linear")]
    default, step = Untargeted(), measured.THREATS[kind].eps
    assert (default.optimizer, default.decay, default.step_size) == ("steepest", True, None)
    assert min(offered, key=right.__getitem__) == ("steepest", "linear", step)


def test_the_order_of_multi_t_fools_sooner() -> None:
    for model in json.loads((ROOT / OPTIMIZERS).read_text()).values():
        ranked, numbered = (
            model["orders"][order]["until_fooled"] for order in ("by clean logits", "by number")
        )
        assert 2 * ranked < numbered, "several times"


def test_autoattack_on_the_published_model() -> None:
    """At each stage at most half a point above the original, and the flag for Square goes up."""
    module = script("results")
    report = load_report(module.WONG)
    for label, original in module.ORIGINAL.items():
        assert 100 * report.scores[label].rate <= original + 0.5
    assert [flag.name for flag in report.flags] == ["black-box-stronger"]
