"""Training that starts from weights of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atlas.checkpoint import load_tensors
from atlas.data import load
from atlas.errors import CheckpointError, UsageError
from atlas.models import build
from atlas.training import RunConfig, load_model, train
from tests.unit.cli.command import atlas

SHAPE = (1, 8, 8)


@pytest.fixture(autouse=True)
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw, y = np.random.default_rng(0), np.arange(60) % 3
    x = (draw.integers(0, 60, (60, 8, 8)) + 90 * y[:, None, None]).astype(np.uint8)
    np.savez("images.npz", x_train=x, y_train=y, x_test=x, y_test=y)


def net(seed: int = 5, **options: Any) -> nn.Module:
    return build("cnn-small", num_classes=3, shape=SHAPE, seed=seed, **options)


def config(**changes: Any) -> RunConfig:
    """Steps so small that the weights stay where they are."""
    training = {
        "optimizer": {"lr": 1e-12},
        "schedule": {"epochs": 1, "ramp_epochs": 0},
        "validation": {"size": 10, "attack": {"name": "fgsm"}},
    }
    table = {"data": "images.npz", "model": "cnn-small", "weights": "old.pth", "training": training}
    return RunConfig.of(
        {**table, "method": {"name": "adv"}, "threat": {"name": "linf", "eps": 0.1}, **changes}
    )


def start_of(run: Path) -> dict[str, Tensor]:
    return load_tensors(run / "best.safetensors")[0]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(one[k], other[k], atol=1e-6) for k in one)


def test_a_run_starts_from_the_weights_of_a_file_or_of_another_run(tmp_path: Path) -> None:
    torch.save({"state_dict": {f"module.{k}": v for k, v in net().state_dict().items()}}, "old.pth")
    train(config(), tmp_path / "run", progress=False)
    assert same(start_of(tmp_path / "run"), net().state_dict())
    train(config(weights="run"), tmp_path / "again", progress=False)
    assert same(start_of(tmp_path / "again"), net().state_dict())
    assert not same(start_of(tmp_path / "run"), net(seed=0).state_dict()), "its own weights are others"


@pytest.mark.parametrize("normalize", [True, {"mean": [0.25], "std": [0.5]}])
def test_weights_without_a_normalisation_go_behind_the_configured_one(tmp_path: Path, normalize: Any) -> None:
    torch.save(net().state_dict(), "old.pth")
    train(config(normalize=normalize), tmp_path / "run", progress=False)
    stats = load("images.npz").stats() if normalize is True else (normalize["mean"], normalize["std"])
    assert same(start_of(tmp_path / "run"), net(normalize=stats).state_dict())
    load_model(tmp_path / "run")


@pytest.mark.parametrize("normalize", [True, False])
def test_weights_keep_the_normalisation_that_they_were_trained_with(tmp_path: Path, normalize: bool) -> None:
    old = net(normalize=((0.25,), (0.5,)))
    torch.save(old.state_dict(), "old.pth")
    train(config(normalize=normalize), tmp_path / "run", progress=False)
    assert same(start_of(tmp_path / "run"), old.state_dict())
    assert same(load_model(tmp_path / "run").state_dict(), old.state_dict())
    with pytest.raises(UsageError, match=r"old\.pth already holds a normalisation, mean \[0\.25\]"):
        train(config(normalize={"mean": [0.1], "std": [0.2]}), tmp_path / "other", progress=False)


def test_a_configuration_without_weights_is_written_as_before() -> None:
    assert "weights" not in config(weights=None).table()
    assert config(normalize=True).table()["normalize"] is True


def test_weights_that_do_not_fit_write_nothing(tmp_path: Path) -> None:
    torch.save(build("cnn-small", num_classes=4, shape=SHAPE).state_dict(), "old.pth")
    with pytest.raises(CheckpointError, match=r"old\.pth does not fit the model 'cnn-small': shapes differ"):
        train(config(), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


QUICK = (
    *("--set", "data=images.npz", "--set", "model=cnn-small", "--set", "training.schedule.epochs=3"),
    *("--set", "training.batch_size=16", "--set", "threat.eps=0.05"),
)


def test_finetuning_keeps_what_the_weights_have_learnt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training: dict[str, Any] = {"batch_size": 16, "optimizer": {"kind": "adam", "lr": 0.01}}
    training["schedule"] = {"kind": "constant", "epochs": 15, "ramp_epochs": 0}
    plain = config(weights=None, method={"name": "natural"}, training=training)
    trained = train(plain, Path("natural"), progress=False)
    assert trained.epochs[-1]["val_clean"] == 1
    torch.save(trained.model.state_dict(), "old.pth")
    assert atlas(monkeypatch, "train", "finetune", "--weights", "old.pth", *QUICK, "--out", "run") == 0
    assert (
        "old.pth: 100.0% correct on the first 60 training images, before training" in capsys.readouterr().err
    )
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert all(line["val_clean"] == 1 for line in lines if line["kind"] == "epoch")


def test_weights_that_know_nothing_are_pointed_at_the_normalisation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    constant = net()
    for parameter in constant.parameters():
        nn.init.zeros_(parameter)
    torch.save(constant.state_dict(), "old.pth")
    command = ("train", "finetune", "--weights", "old.pth", *QUICK, "--out", "run")
    assert atlas(monkeypatch, *command) == 0
    assert "no better than a constant answer. If the weights were trained on" in capsys.readouterr().err
    assert atlas(monkeypatch, "train", "--resume", "run") == 0
    assert "before training" not in capsys.readouterr().err, "it has begun"
