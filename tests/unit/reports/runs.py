"""Small runs on a few hundred real digits, for tests that report on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from atlas import data
from atlas.attacks import FGSM, PGD, Attack, Model
from atlas.evaluation import Report, evaluate
from atlas.methods import Adv
from atlas.models import build, source
from atlas.runs import Run
from atlas.threat import Linf
from atlas.training import (
    Optimizer,
    RunConfig,
    Schedule,
    Training,
    Validation,
    load_config,
    load_model,
    train,
)
from atlas.training.fit import fit

NASTY = "<script>alert(1)</script>"
"""A run's name; the slash makes two folders of it, which are shown together where the last does not do."""
QUOTED = "\"PGD\" '3' <b>&amp;"
"""An attack's label."""
ATTACKS: Mapping[str, Attack] = {"PGD-3": PGD(steps=3), QUOTED: PGD(steps=3, objective="margin")}


def make_data(path: Path) -> str:
    """400 digits to train on and 80 to test on, as a file."""
    arrays = {}
    for half, count in {"train": 400, "test": 80}.items():
        images = data.load("mnist-mini", train=half == "train")
        arrays |= {f"x_{half}": images.x[:count].numpy(), f"y_{half}": images.y[:count].numpy()}
    np.savez(path, **arrays)
    return str(path)


def make_run(folder: Path, images: str, *, seed: int = 0) -> Path:
    """A run of three short epochs."""
    table = {
        "data": images,
        "model": "cnn-small",
        "normalize": True,
        "method": {"name": "adv", "attack": {"name": "fgsm"}},
        "threat": {"name": "linf", "eps": 0.1},
        "training": {
            "seed": seed,
            "batch_size": 20,
            "optimizer": {"kind": "adam", "lr": 0.002},
            "schedule": {"epochs": 3, "ramp_epochs": 0},
            "validation": {"size": 40, "attack": {"name": "fgsm"}},
        },
    }
    train(RunConfig.of(table), folder, progress=False)
    return folder


def evaluated(run: Path, attacks: Mapping[str, Attack] = ATTACKS, name: str = "quick-0") -> Report:
    """Evaluate the run as `atlas evaluate` does, into its folder."""
    config, folder = load_config(run), run / "evaluations" / name
    images, model = data.load(config.data, train=False), load_model(run)
    key = source.fingerprint(model)
    rest = {"attacks": attacks, "folder": folder, "model_key": key, "progress": False}
    return evaluate(model, images, config.threat, **rest)


def collapse(run: Path) -> None:
    """Write a collapse into the metrics of the run's last epoch."""
    path = run / "metrics.jsonl"
    records = Run(run).records  # without checksums, as older versions wrote them
    records[-1] |= {"collapse": True, "val_robust": 0.0}
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def make_fit(folder: Path, images: str, **rest: Any) -> nn.Module:
    """A run of two short epochs by `atlas.fit`, whose folder knows neither model nor data."""
    short = Training(
        batch_size=20,
        optimizer=Optimizer(kind="adam", lr=0.002),
        schedule=Schedule(kind="constant", epochs=2, ramp_epochs=0),
        validation=Validation(size=40, attack=FGSM()),
    )
    loaded = data.load(images)
    model = build("cnn-small", 10, (1, 28, 28), loaded.stats())
    known = {"threat": Linf(0.1), "training": short, "folder": folder, "progress": False}
    return fit(model, loaded, Adv(attack=FGSM()), **known, **rest).model


def evaluated_by_hand(folder: Path | None, model: Model, images: str, **rest: Any) -> Report:
    """An evaluation by `atlas.evaluate` of whatever can be called."""
    known = {"attacks": {"PGD-3": PGD(steps=3)}, "folder": folder, "progress": False}
    return evaluate(model, data.load(images, train=False), Linf(0.1), **known, **rest)
