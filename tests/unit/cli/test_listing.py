"""`atlas presets`, `models`, `methods` and `attacks`: what there is by name, on a terminal of 80 columns."""

from __future__ import annotations

import inspect
import tomllib
from itertools import takewhile

import pytest

from atlas import presets
from atlas.attacks import ATTACKS
from atlas.methods import METHODS
from atlas.models import MODELS
from tests.unit.cli.command import atlas


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_presets_and_models_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, names in {"presets": presets.names(), "models": MODELS}.items():
        assert atlas(monkeypatch, command) == 0
        shown = capsys.readouterr().out
        assert all(f"{name} " in shown for name in names)
        assert max(map(len, shown.splitlines())) <= 80


def test_a_preset_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert atlas(monkeypatch, "presets", "cifar10-atlas-1") == 0
    shown = capsys.readouterr().out
    assert tomllib.loads(shown) == presets.load_preset("cifar10-atlas-1")[1]
    assert 'eps = "8/255"                # radius in pixel units' in shown
    assert atlas(monkeypatch, "presets", "cifar10-atlas1") == 2
    assert "did you mean 'cifar10-atlas-1'" in capsys.readouterr().err


@pytest.mark.parametrize(("command", "registry"), [("methods", METHODS), ("attacks", ATTACKS)])
def test_methods_and_attacks_are_listed_with_their_parameters(
    command: str,
    registry: dict[str, type],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert atlas(monkeypatch, command) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, builder in registry.items():
        after = lines[lines.index(name) + 1 :]
        text = " ".join(line.strip() for line in takewhile(lambda line: line.startswith(" "), after))
        for parameter in inspect.signature(builder).parameters:
            assert f"{parameter}=" in text or f"{parameter} (" in text


def test_parameters_show_defaults_choices_and_what_is_required(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert atlas(monkeypatch, "methods") == 0
    assert "alpha (required), beta (required), attack=fgsm, projections=1" in capsys.readouterr().out
    assert atlas(monkeypatch, "attacks") == 0
    shown = capsys.readouterr().out
    assert "steps=20, step_size (not set), relative_step (not set), restarts=1" in shown
    assert "start_at=uniform (or gaussian, clean), clip_start=true" in shown
