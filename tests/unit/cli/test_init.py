"""`atlas init` on data of a user, to a run and its evaluation."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.cli.command import atlas

FAST = (
    "--set",
    "model=cnn-small",
    "--set",
    "training.schedule.epochs=2",
    "--set",
    "training.schedule.ramp_epochs=1",
)


@pytest.fixture(autouse=True)
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flat folder: no test set."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for label, name in enumerate(["cat", "dog"]):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for k in range(20):
            pixels = draw.integers(0, 90, (8, 8, 3)) + 120 * label
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"photos/{name}/{k}.png")


def test_from_a_folder_to_an_evaluation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert atlas(monkeypatch, "init", "photos") == 0
    shown = capsys.readouterr().out
    assert "photos has no test set: a fifth of its images is set apart" in shown
    assert "32 training images, colour, 8x8 pixels, 2 classes: cat, dog." in shown
    assert "Next: atlas train photos.toml" in shown
    table = tomllib.loads(Path("photos.toml").read_text())
    assert table["data"] == "photos:test=0.2"
    assert table["method"]["name"] == "adv"
    assert len(table["normalize"]["mean"]) == 3
    assert atlas(monkeypatch, "train", "photos.toml", *FAST) == 0
    assert "no test set" not in capsys.readouterr().err
    assert atlas(monkeypatch, "evaluate", "runs/photos", "--attacks", "fgsm", "--json") == 0
    assert json.loads(capsys.readouterr().out)["n"] == 8
    assert atlas(monkeypatch, "evaluate", "runs/photos", "--data", "photos:test=0.5") == 2
    assert "whose training images may be test images of photos:test=0.5" in capsys.readouterr().err


def test_options_and_mistakes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model", "my.nets:make", "--eps", "4/255", "--out", "mine.toml")
    assert atlas(monkeypatch, "init", "photos", *options) == 0
    table = tomllib.loads(Path("mine.toml").read_text())
    assert (table["model"], table["threat"]["eps"]) == ("my.nets:make", "4/255")
    capsys.readouterr()
    for command, code, words in [
        (("photos", "--out", "mine.toml"), 2, "mine.toml exists"),
        (("photos", "--out", "mine.txt"), 2, "--out must be a .toml file"),
        (("photos", "--eps", "x"), 2, "--eps must be a number"),
        (("nowhere/photos",), 3, "found nothing"),
    ]:
        assert atlas(monkeypatch, "init", *command) == code
        assert words in capsys.readouterr().err
    assert sorted(p.name for p in Path().iterdir()) == ["mine.toml", "photos"]


def test_training_on_a_flat_folder_says_at_the_start_that_it_cannot_be_tested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert atlas(monkeypatch, "train", "standard", "--set", "data=photos", *FAST) == 0
    said = capsys.readouterr().err
    assert "photos has no test set, which `atlas evaluate` needs" in said
    assert said.index('data = "photos:test=0.2"') < said.index("epoch")
    assert atlas(monkeypatch, "evaluate", "runs/standard", "--data", "photos:test=0.2") == 2
    assert "runs/standard was trained on photos, whose training images" in capsys.readouterr().err


def test_labels_from_one_are_named_at_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = np.arange(30 * 64, dtype=np.uint8).reshape(30, 8, 8), np.arange(30) % 3 + 1
    np.savez("mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert atlas(monkeypatch, "train", "standard", "--set", "data=mine.npz", *FAST) == 0
    assert (
        "mine.npz: class 0 has no image: labels go from 1 to 3, and classes count from 0"
        in capsys.readouterr().err
    )
