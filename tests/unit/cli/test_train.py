"""The commands, run as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.command import atlas

QUICK = (
    *(
        "--set",
        "data=mnist-mini",
        "--set",
        "training.schedule.epochs=1",
        "--set",
        "training.schedule.ramp_epochs=0",
    ),
    *("--set", "training.batch_size=500", "--set", "training.validation.size=50"),
    *("--set", "training.validation.attack={name = 'pgd', steps = 1}"),
)


def test_train_writes_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    changes = ("--set", "method.alpha=1/1000", "--set", "threat.eps=26/255", "--seed", "3")
    assert atlas(monkeypatch, "train", "mnist-small-atlas-1", *QUICK, *changes, "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert "best.safetensors" in said
    assert said.endswith(f"Next: atlas evaluate {out}\n")
    config = json.loads((out / "config.json").read_text())["config"]
    assert config["method"]["alpha"] == 1e-3
    assert config["threat"]["eps"] == pytest.approx(26 / 255)
    assert config["training"]["seed"] == 3
    assert atlas(monkeypatch, "train", "mnist-small-atlas-1", *QUICK, "--out", str(out)) == 2
    assert "--resume" in capsys.readouterr().err
    assert atlas(monkeypatch, "train", "--resume", str(out)) == 0, "a finished run says so and ends well"


def test_another_method_says_which_settings_are_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ("--set", "method.name=adv", "--out", str(tmp_path / "run"))
    assert atlas(monkeypatch, "train", "mnist-small-atlas-1", *QUICK, *changes) == 0
    said = "drops the settings of the old one: method.alpha=1e-05, method.beta=0.3\n"
    assert said in capsys.readouterr().out
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["method"]["name"] == "adv"


def test_auto_writes_down_what_it_means_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr("atlas.training.precision.knows_bfloat16", lambda: True)
    own = ("--set", "training.precision=float32", "--device", "cpu", "--out", str(out))
    assert atlas(monkeypatch, "train", "mnist-small-adv-1", *QUICK, "--precision", "auto", *own) == 0
    training = json.loads((out / "config.json").read_text())["config"]["training"]
    assert training["channels_last"] == "auto"
    assert "precision" not in training, "what --set says goes before it"
    monkeypatch.setattr("atlas.training.precision.knows_bfloat16", lambda: False)
    assert atlas(monkeypatch, "train", "--resume", str(out), "--precision", "auto") == 0, "it is what it was"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "mnist-small-atlas"], "did you mean 'mnist-small-atlas-1'"),
        (["train", "mnist-adv-1", "--set", "method.alhpa=1"], "unknown key in method: 'alhpa'"),
        (["train", "mnist-atlas-1", "--set", "method.alhpa=1"], "did you mean 'alpha'"),
        (["train", "mnist-adv-1", "--set", "threat.eps=8/0"], "must be a number"),
        (["train", "mnist-adv-1", "--set", "model=cnn-smal"], "did you mean 'cnn-small'"),
        (["train", "mnist-adv-1", "--set", "nonsense"], "--set must be KEY=VALUE"),
        (["train", "mnist-adv-1", "--on-collapse", "panic"], "choose from: continue, rollback, stop"),
        (["train"], "give one of them"),
        (["train", "missing.toml"], "no file missing.toml"),
    ],
)
def test_wrong_words_exit_2_and_say_what_is_right(
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    if any("model=" in a for a in arguments):
        arguments = [*arguments, "--set", "data=mnist-mini"]
    assert atlas(monkeypatch, *arguments) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "nothing is written for a run that cannot be"


def test_missing_data_is_exit_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert (
        atlas(monkeypatch, "train", "mnist-adv-1", "--root", str(tmp_path), "--out", str(tmp_path / "r")) == 3
    )


def test_not_a_run_is_exit_4(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert atlas(monkeypatch, "train", "--resume", str(tmp_path)) == 4
