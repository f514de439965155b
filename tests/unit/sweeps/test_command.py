"""`atlas sweep` as a person runs it, on the embedded data."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from atlas import presets
from atlas.training import RunConfig, load_config
from tests.unit.cli.command import atlas

QUICK = [
    *("--set", "training.schedule.epochs=1", "--set", "training.schedule.ramp_epochs=0"),
    *("--set", "training.batch_size=500", "--set", "training.validation.size=50"),
    *("--set", "training.validation.attack={name = 'pgd', steps = 1}"),
]


def test_a_stronger_attack_scores_on_the_validation_images(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = ("--grid", "training.optimizer.kind=sgd,adam", "--score-attack", "un-t 3x50")
    assert atlas(monkeypatch, "sweep", "demo-atlas-1", *QUICK, *grid) == 0
    folder = tmp_path / "runs/sweep-demo-atlas-1"
    said = capsys.readouterr().out
    assert "2 of 2 trials ended" in said
    assert "runs/sweep-demo-atlas-1/best.toml" in said
    table = json.loads((folder / "table.json").read_text())
    assert "score (Un-T 3x50)" in table["columns"]
    score, robust = (table["columns"].index(name) for name in ("score (Un-T 3x50)", "robust"))
    for row in table["rows"]:
        assert row[score]["value"] <= row[robust]["value"]
        summary = json.loads((folder / f"scores/{int(row[0]['value']):03d}/summary.json").read_text())
        assert summary["about"]["n"] == 50
    config = RunConfig.of(presets.load_preset(str(folder / "best.toml"))[1])
    best = int(table["rows"][0][0]["value"])
    assert config == load_config(folder / f"trials/{best:03d}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "neither or both"),
        (["--grid", "method.alpha=1", "--search", "3"], "neither or both"),
        (["--grid", "method.alpha=1", "--range", "method.beta=1..2"], "for --search"),
        (["--search", "3", "--score-attack", "unt"], "did you mean 'un-t'"),
        (["--search", "3", "--storage", "postgresql://a:b@c/d"], "PGPASSWORD"),
        (["--search", "3", "--storage=postgresql://a:b@c/d"], "PGPASSWORD"),
        (["--search", "3", "--set", "method.alpa=1"], "alpa"),
    ],
)
def test_wrong_words_are_exit_2(
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert atlas(monkeypatch, "sweep", "demo-atlas-1", *arguments) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_optuna_the_command_to_install_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert atlas(monkeypatch, "sweep", "demo-atlas-1", "--search", "1") == 2
    assert "pip install 'atlas-robust[sweep]'" in capsys.readouterr().err
