"""`atlas demo`, with trainings of a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlas.attacks import PGD
from atlas.cli import demo
from tests.unit.cli.command import atlas

BRIEF = """
extends = "{name}"
data = "mnist-mini:100"
training.schedule.epochs = 1
training.schedule.ramp_epochs = 0
training.validation.size = 20
training.validation.attack.steps = 1
"""


def test_it_names_each_model_before_it_begins_and_fits_80_columns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    methods = {label: f"{name}.toml" for label, name in list(demo.METHODS.items())[-1:]}
    for name in methods.values():
        Path(name).write_text(BRIEF.format(name=name.removesuffix(".toml")))
    attacks = {label: PGD(steps=1) for label in demo.ATTACKS}
    monkeypatch.setattr(demo, "METHODS", methods)
    monkeypatch.setattr(demo, "ATTACKS", attacks)
    monkeypatch.setattr(demo, "IMAGES", 20)
    assert atlas(monkeypatch, "demo", "--out", "out") == 0
    said = capsys.readouterr()
    assert "Model 1 of 1: one-step ATLAS, in out/demo-atlas-1.toml" in said.out
    table = said.out[said.out.index("one-step methods:") : said.out.index("  out/report.html")]
    assert [line.split()[0] for line in table.splitlines()] == ["one-step", "clean", "ATLAS"]
    assert max(map(len, table.splitlines())) <= 80
    assert "Next: open out/report.html" in said.out
    assert Path("out/report.html").exists()
