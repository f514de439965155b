"""Methods, attacks, models and data from outside, named `module.path:Name`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from atlas.attacks import Attack
from atlas.config import override, table_of
from atlas.data import load
from atlas.errors import AtlasError, DataError, UsageError
from atlas.sweeps.worker import named_attack
from atlas.training import RunConfig, load_config
from atlas.training.settings import REGISTRIES
from tests.unit.cli.command import atlas

SOURCE = """
from dataclasses import dataclass

import torch
from torch import nn

from atlas.attacks import PGD
from atlas.methods import Adv

@dataclass(frozen=True)
class HalfAdv(Adv):
    share: float = 0.5

    def terms(self, model, x, x_adv, y, step):
        return super().terms(model, x, x + self.share * (x_adv - x), y, step)

@dataclass(frozen=True)
class TwoSteps(PGD):
    steps: int = 2

def net(num_classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], num_classes))

def digits(train):
    generator = torch.Generator().manual_seed(int(train))
    return torch.rand(40, 1, 6, 6, generator=generator), torch.arange(40) % 4

def broken(train):
    raise RuntimeError("mine")

number = 3
"""
TABLE: dict[str, Any] = {
    "data": "plugged.parts:digits",
    "model": "plugged.parts:net",
    "method": {"name": "plugged.parts:HalfAdv", "share": 0.25, "attack": {"name": "plugged.parts:TwoSteps"}},
    "threat": {"name": "linf", "eps": 0.1},
    "training": {
        "batch_size": 10,
        "schedule": {"epochs": 1, "ramp_epochs": 0},
        "validation": {"size": 10, "attack": {"name": "plugged.parts:TwoSteps"}},
    },
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "plugged").mkdir()
    (tmp_path / "plugged" / "parts.py").write_text(SOURCE)
    for name in ("plugged", "plugged.parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_a_configuration_names_parts_from_outside_and_survives_the_round_trip() -> None:
    config = RunConfig.of(TABLE)
    assert type(config.method).__name__ == "HalfAdv"
    assert type(config.method.attack).__name__ == "TwoSteps"
    assert table_of(config.method, REGISTRIES)["name"] == "plugged.parts:HalfAdv"
    assert RunConfig.of(json.loads(json.dumps(config.table()))) == config


def test_another_name_keeps_the_attack_of_the_method() -> None:
    table = TABLE | {"method": {"name": "trades", "beta": 2.0, "attack": {"name": "fgsm"}}}
    changed = override(table, "method.name", "plugged.parts:HalfAdv", REGISTRIES)
    assert changed["method"] == {"name": "plugged.parts:HalfAdv", "attack": {"name": "fgsm"}}


def test_they_are_trained_and_evaluated_by_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["extends = 'standard'", f"data = {TABLE['data']!r}", f"model = {TABLE['model']!r}"]
    lines += ["normalize = false", "training.batch_size = 10", "training.validation.size = 10"]
    lines += ["training.schedule.epochs = 1", "training.schedule.ramp_epochs = 0"]
    Path("mine.toml").write_text("\n".join(lines))
    options = ("--set", "method.name=plugged.parts:HalfAdv", "--set", "method.share=0.25", "--out", "run")
    assert atlas(monkeypatch, "train", "mine.toml", *options) == 0
    assert load_config(Path("run")).table()["method"]["share"] == 0.25
    capsys.readouterr()
    attacks = "fgsm,plugged.parts:TwoSteps"
    assert atlas(monkeypatch, "evaluate", "run", "--attacks", attacks, "--json") == 0
    assert list(json.loads(capsys.readouterr().out)["accuracy"]) == [
        "clean",
        "fgsm",
        "TwoSteps",
        "worst case",
    ]


def test_a_sweep_can_be_scored_by_an_attack_from_outside() -> None:
    label, attack = named_attack("plugged.parts:TwoSteps", "mnist")
    assert (label, type(attack).__name__) == ("plugged.parts:TwoSteps", "TwoSteps")
    assert isinstance(attack, Attack)


@pytest.mark.parametrize(
    ("key", "name", "words"),
    [
        ("method.name", "plugged.parts:HalfAdvv", "did you mean 'HalfAdv'"),
        ("method.name", "plugged.parts:TwoSteps", "must name a subclass of Method, got"),
        ("method.name", "os:system", "must name a subclass of Method, got 'os:system'"),
        ("method.attack.name", "plugged.parts:HalfAdv", "must name a subclass of TrainingAttack"),
        ("method.attack.name", "plugged.nothing:A", "importing 'plugged.nothing' failed.*importable from"),
        ("method.name", "plugged.parts:number", "must name a subclass of Method, got .*: 3"),
    ],
)
def test_what_is_wrong_with_a_name(key: str, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RunConfig.of(override(TABLE, key, name, REGISTRIES))


def test_data_from_a_function() -> None:
    train, test = load("plugged.parts:digits"), load("plugged.parts:digits", train=False)
    assert (train.name, len(train), train.num_classes) == ("digits", 40, 4)
    assert train.fingerprint() != test.fingerprint()


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("plugged.parts:digitss", UsageError, "did you mean 'digits'"),
        ("plugged.parts:number", DataError, "must be a function of train, got a int"),
        ("plugged.parts:broken", DataError, "failed with RuntimeError: mine"),
        ("plugged.parts:net", DataError, "failed with TypeError"),
    ],
)
def test_what_is_wrong_with_a_data_function(name: str, error: type[AtlasError], words: str) -> None:
    with pytest.raises(error, match=words):
        load(name)
