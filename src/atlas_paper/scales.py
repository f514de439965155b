"""How much of an experiment is done: the paper's own sizes, what two cores can do, or next to nothing."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from atlas.errors import UsageError
from atlas.files import write_atomic

ScaleName = Literal["paper", "cpu", "smoke"]
SCALES: tuple[ScaleName, ...] = ("paper", "cpu", "smoke")
TASKS = {"mnist": 10, "cifar10": 10, "cifar100": 100}
"""The data sets of the paper, with their classes."""
NETWORKS = ("cnn", "cnn-small")
"""Those that MNIST's rows can have."""
SMOKE_SIDE, SMOKE_TRAIN, SMOKE_TEST, SMOKE_CLASSES = 8, 300, 40, 10
"""Pixels a side, images, and classes that have any, of what stands for CIFAR at scale smoke."""
_BRIEF = {
    "training.batch_size": 50,
    "training.optimizer.kind": "adam",
    "training.optimizer.lr": 0.01,
    "training.schedule.epochs": 3,
    "training.schedule.ramp_epochs": 1,
    "training.validation.size": 50,
    "training.validation.attack.steps": 2,
    "method.attack.steps": 2,
}
"""What makes a training one of seconds. Keys that a preset has no use for are left out."""


@dataclass(frozen=True)
class Setting:
    """One data set at one scale."""

    prefix: str
    """Of the presets' names."""
    words: str
    """What was trained, for the reader of a table."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What all runs change in their presets, by dotted keys."""
    images: Mapping[str, int] = field(default_factory=dict)
    """Test images of each attack by column; "" for all others; all of them where there is neither."""
    random: tuple[str, ...] = ()
    """Columns whose images are drawn by chance; else they are the first."""
    cut: bool = False
    """Whether attacks have next to no budget."""

    def n(self, column: str) -> int | None:
        return self.images.get(column, self.images.get(""))


def setting(scale: ScaleName, task: str, network: str, smoke_data: Path) -> Setting:
    """How the data set is treated at this scale; MNIST on this network."""
    if task == "mnist":
        return _mnist(scale, network)
    return _cifar(scale, task, smoke_data)


def default_network(scale: ScaleName) -> str:
    """Of MNIST."""
    return "cnn" if scale == "paper" else "cnn-small"


def _mnist(scale: ScaleName, network: str) -> Setting:
    if network not in NETWORKS:
        raise UsageError(f"network is {network!r}; wanted one of {', '.join(NETWORKS)}")
    prefix = "mnist-" if network == "cnn" else "mnist-small-"
    if scale == "paper":
        words = f"{network} on all 60,000 training images, all test images"
        return Setting(prefix, words, images={"RayS": 1000}, random=("RayS",))
    if scale == "cpu":
        # The larger network is some 23 times the work.
        few = {"Multi-T": 200, "RayS": 200} if network == "cnn" else {}
        words = f"{network} on all 60,000 training images"
        return Setting(prefix, words, images={"": 1000, "PGD-20": 10_000, **few})
    words = f"{network} on 300 embedded images, 3 epochs, eps 0.05: a test of the machinery, no result"
    changes = {"data": "mnist-mini:300", "threat.eps": 0.05, **_BRIEF}
    return Setting(prefix, words, changes, {"": 20, "PGD-20": 30}, cut=True)


def _cifar(scale: ScaleName, task: str, smoke_data: Path) -> Setting:
    if scale == "paper":
        words = "WRN-28-8 on all 50,000 training images, all test images"
        return Setting(f"{task}-", words, images={"RayS": 1000}, random=("RayS",))
    if scale == "cpu":
        words = (
            "WRN-10-1 on the first 6,000 training images, 30 epochs at most, "
            "eps growing over 10; the paper has WRN-28-8, all 50,000 images, and eps growing over 15 epochs"
        )
        changes = {
            "data": f"{task}:6000",
            "model": "wrn-10-1",
            "training.validation.size": 1000,
            "training.schedule.epochs": 30,
            "training.schedule.ramp_epochs": 10,
        }
        return Setting(f"{task}-", words, changes, {"": 400, "PGD-20": 1000, "RayS": 50})
    words = f"cnn-small on {SMOKE_TRAIN} made-up images for 3 epochs: a test of the machinery, no result"
    data = str(smoke_data / f"{task}-smoke.npz")
    changes = {"data": data, "model": "cnn-small", "training.augment": "none", **_BRIEF}
    return Setting(f"{task}-", words, changes, {"": 20, "PGD-20": 30}, cut=True)


def make_smoke_data(folder: Path) -> None:
    """Made-up colour images that stand for CIFAR at scale smoke: a mean for each class, and noise."""
    for task, classes in TASKS.items():
        path = folder / f"{task}-smoke.npz"
        if task != "mnist" and not path.exists():
            _write_smoke(path, classes)


def _write_smoke(path: Path, classes: int) -> None:
    draw = np.random.default_rng(0)
    means = draw.uniform(0.35, 0.65, (classes, 3, SMOKE_SIDE, SMOKE_SIDE))
    arrays: dict[str, Any] = {}
    for half, count in {"train": SMOKE_TRAIN, "test": SMOKE_TEST}.items():
        y = np.arange(count) % SMOKE_CLASSES * (classes // SMOKE_CLASSES) + classes // SMOKE_CLASSES - 1
        noise = draw.normal(0, 0.25, (count, 3, SMOKE_SIDE, SMOKE_SIDE))
        arrays |= {f"x_{half}": np.uint8(255 * (means[y] + noise).clip(0, 1)), f"y_{half}": y}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_atomic(path, buffer.getvalue())
