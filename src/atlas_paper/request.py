"""What was asked for: an artefact, how much of it, and which runs and evaluations that means."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from atlas import presets
from atlas.attacks.model_variants import DTYPES
from atlas.config import fingerprint, overridden
from atlas.errors import UsageError, choose
from atlas.evaluation.score import ON_CLEAN, WORST_CASE
from atlas.files import write_atomic
from atlas.training import RunConfig
from atlas.training.precision import Precision
from atlas.training.settings import REGISTRIES
from atlas_paper.artefact import Artefact, Column, ModelRow, column
from atlas_paper.paper import TIME

ScaleName = Literal["paper", "cpu", "smoke"]
SCALES: tuple[ScaleName, ...] = ("paper", "cpu", "smoke")
Version = Literal["written", "tuned"]
NETWORKS = ("cnn", "cnn-small")
"""The networks that MNIST's rows can have."""
SURROGATE, SURROGATE_SEED = "natural", 99
"""The black box attack's surrogate is a model of the same network, trained without an adversary from another
seed than any row: the paper does not say which it takes."""
MOST_SEEDS = 10
DERIVED = (ON_CLEAN, WORST_CASE, TIME)
"""Columns that are not attacks."""
SMOKE_CLASSES = {"cifar10": 10, "cifar100": 100}
SMOKE_SIDE, SMOKE_TRAIN, SMOKE_TEST, SMOKE_USED = 8, 300, 40, 10
"""Pixels per side, images, and classes that have images, of what replaces CIFAR at scale smoke."""
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
"""What makes a training take seconds. Keys that do not apply to a preset are dropped."""

CPU_CIFAR = (
    "WRN-10-1 on the first 6,000 training images, 30 epochs at most, eps growing over 10; the paper has "
    "WRN-28-8, all 50,000 images, and eps growing over 15 epochs"
)
_SMALLER = {
    "model": "wrn-10-1",
    "training.validation.size": 1000,
    "training.schedule.epochs": 30,
    "training.schedule.ramp_epochs": 10,
}


@dataclass(frozen=True)
class RunSpec:
    """A training: a preset, changes and a seed."""

    preset: str
    changes: Mapping[str, Any]
    seed: int

    @cached_property
    def config(self) -> RunConfig:
        table = presets.load_preset(self.preset)[1]
        changes = {**self.changes, "training.seed": self.seed}
        return RunConfig.of(overridden(table, changes.items(), REGISTRIES))

    @cached_property
    def hash(self) -> str:
        return fingerprint(self.config.table())

    @property
    def name(self) -> str:
        return f"{self.preset}-{self.hash[:8]}"

    @property
    def command(self) -> str:
        """The `atlas train` command of this run."""
        values = {k: str(v).lower() if isinstance(v, bool) else v for k, v in self.changes.items()}
        settings = [f"--set {shlex.quote(f'{key}={value}')}" for key, value in values.items()]
        seed = [f"--seed {self.seed}"] if self.seed else []
        return " ".join(["atlas train", self.preset, *settings, *seed])


@dataclass(frozen=True)
class Setting:
    """One data set at one scale."""

    prefix: str
    """Of the presets' names."""
    words: str
    """What was trained, for the reader of a table."""
    images: Mapping[str, int]
    """Test images by column; "" for the other columns; all of them where neither is given."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What all runs change in their presets, by dotted keys."""

    def n(self, column: str) -> int | None:
        return self.images.get(column, self.images.get(""))


def default_network(scale: ScaleName) -> str:
    """The network of MNIST's rows."""
    return "cnn" if scale == "paper" else "cnn-small"


def make_smoke_data(folder: Path) -> None:
    """Write the colour images that replace CIFAR at scale smoke: a mean for each class, and noise."""
    for task, classes in SMOKE_CLASSES.items():
        path = folder / f"{task}-smoke.npz"
        if path.exists():
            continue
        draw = np.random.default_rng(0)
        means = draw.uniform(0.35, 0.65, (classes, 3, SMOKE_SIDE, SMOKE_SIDE))
        arrays: dict[str, Any] = {}
        for half, count in {"train": SMOKE_TRAIN, "test": SMOKE_TEST}.items():
            y = np.arange(count) % SMOKE_USED * (classes // SMOKE_USED) + classes // SMOKE_USED - 1
            noise = draw.normal(0, 0.25, (count, 3, SMOKE_SIDE, SMOKE_SIDE))
            arrays |= {f"x_{half}": np.uint8(255 * (means[y] + noise).clip(0, 1)), f"y_{half}": y}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        write_atomic(path, buffer.getvalue())


@dataclass(frozen=True)
class Request:
    """One artefact at one scale."""

    artefact: Artefact
    scale: ScaleName
    smoke_data: Path
    """The folder of the made-up images of scale smoke."""
    network: str = ""
    """Of MNIST; "" for the scale's default."""
    version: Version = "written"
    seeds: int = 1
    only: tuple[str, ...] = ()
    """Keys of rows, or patterns of them; all rows where empty."""
    attack_dtype: str = "float32"
    precision: str = "float32"
    """Of all trainings; a lower one comes with channels last where that is fast."""

    def __post_init__(self) -> None:
        choose("attack dtype", self.attack_dtype, DTYPES)
        choose("precision", self.precision, {name: name for name in get_args(Precision)})
        if self.network not in ("", *NETWORKS):
            raise UsageError(f"network must be one of {', '.join(NETWORKS)}, got {self.network!r}")
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise UsageError(f"seeds must be 1 to {MOST_SEEDS}, got {self.seeds}")
        if self.seeds > 1 and not self.artefact.columns:
            raise UsageError(f"{self.artefact.name} shows one seed; omit --seeds")
        if not self.of_mnist and (self.network or self.version != "written"):
            raise UsageError(f"--network and --version are for MNIST; {self.artefact.name} has other data")
        for pattern in self.only:
            if not any(fnmatchcase(row.key, pattern) for row in self.scaled_rows):
                keys = ", ".join(row.key for row in self.scaled_rows)
                raise UsageError(f"{self.artefact.name} has no row {pattern!r}; choose from: {keys}")
        for row in self.rows:
            if (name := self._preset(row)) not in presets.names():
                hint = "; use --version written" if self.version == "tuned" else ""
                if self.artefact.columns and (known := self.all_rows):
                    hint += f", or --rows {','.join(row.key for row in known)}"
                raise UsageError(f"{self.artefact.name} needs the preset {name}, which does not exist{hint}")

    @property
    def scaled_rows(self) -> list[ModelRow]:
        """The artefact's rows at this scale."""
        return [row for row in self.artefact.rows if row.smoke or self.scale != "smoke"]

    @property
    def rows(self) -> list[ModelRow]:
        """The rows that were asked for."""
        patterns = self.only or ("*",)
        return [row for row in self.scaled_rows if any(fnmatchcase(row.key, p) for p in patterns)]

    @property
    def all_rows(self) -> list[ModelRow]:
        """The rows that are shown: some may have no tuned preset."""
        known = set(presets.names())
        return [row for row in self.scaled_rows if self._preset(row) in known]

    @property
    def of_mnist(self) -> bool:
        return {row.task for row in self.artefact.rows} == {"mnist"}

    def setting(self, task: str) -> Setting:
        """How the data set is treated at this scale."""
        mnist, network = task == "mnist", self.network or default_network(self.scale)
        prefix = f"{task}-" if not mnist or network == "cnn" else "mnist-small-"
        if self.scale == "paper":
            trained = f"{network} on all 60,000" if mnist else "WRN-28-8 on all 50,000"
            return Setting(prefix, f"{trained} training images, all test images", {"RayS": 1000})
        if self.scale == "smoke":
            data = "mnist-mini:300" if mnist else str(self.smoke_data / f"{task}-smoke.npz")
            what = f"{network} on 300 embedded images, 3 epochs, eps 0.05"
            changes: dict[str, Any] = {"data": data, "threat.eps": 0.05, **_BRIEF}
            if not mnist:
                what = f"cnn-small on {SMOKE_TRAIN} made-up images for 3 epochs"
                changes = {"data": data, "model": "cnn-small", "training.augment": "none", **_BRIEF}
            words = f"{what}: a test of the machinery, no result"
            return Setting(prefix, words, {"": 20, "PGD-20": 30}, changes)
        if mnist:
            # The larger network takes about 23 times the work.
            few = {"Multi-T": 200, "RayS": 200} if network == "cnn" else {}
            words = f"{network} on all 60,000 training images"
            return Setting(prefix, words, {"": 1000, "PGD-20": 10_000, **few})
        return Setting(
            prefix, CPU_CIFAR, {"": 400, "PGD-20": 1000, "RayS": 50}, {"data": f"{task}:6000", **_SMALLER}
        )

    def run(self, row: ModelRow, seed: int) -> RunSpec:
        return self._run(row.task, self._preset(row), row.changes, seed)

    def surrogate(self, task: str) -> RunSpec:
        return self._run(task, f"{self.setting(task).prefix}{SURROGATE}", {}, SURROGATE_SEED)

    def _run(self, task: str, preset: str, changes: Mapping[str, Any], seed: int) -> RunSpec:
        lower = {"training.precision": self.precision, "training.channels_last": "auto"}
        arithmetic = {} if self.precision == "float32" else lower
        return RunSpec(
            preset, {**_applicable(self.setting(task).changes, preset), **changes, **arithmetic}, seed
        )

    def _preset(self, row: ModelRow) -> str:
        return f"{self.setting(row.task).prefix}{row.preset}{'-tuned' if self.version == 'tuned' else ''}"

    def columns(self, row: ModelRow) -> list[Column]:
        """The evaluations of a row, in the order in which they are made."""
        setting, labels = self.setting(row.task), self.artefact.columns_of(row)
        attacks = [label for label in labels if label not in DERIVED]
        found = [column(label, row.task, setting.n(label), self.scale) for label in attacks]
        return [each for each in found if each is not None]

    def shown(self, row: ModelRow) -> list[str]:
        """The columns in which a row has a cell: a data set may lack an attack."""
        made = {*DERIVED, *(column.label for column in self.columns(row))}
        return [label for label in self.artefact.columns_of(row) if label in made]

    @property
    def transfer_tasks(self) -> list[str]:
        """The data sets with a black box column, which need a surrogate."""
        return sorted({row.task for row in self.all_rows if any(c.transfer for c in self.columns(row))})

    @property
    def name(self) -> str:
        """Of the folder of its results."""
        network = "" if self.network == default_network(self.scale) else self.network
        parts = {
            self.version: self.version != "written",
            f"{self.seeds}-seeds": self.seeds > 1,
            f"trained-{self.precision}": self.precision != "float32",
            f"attacked-{self.attack_dtype}": self.attack_dtype != "float32",
        }
        named = [self.artefact.name, self.scale, network, *(part for part, given in parts.items() if given)]
        return "-".join(filter(None, named))

    @property
    def command(self) -> str:
        """The command that makes or resumes it, without the options that name folders."""
        options = {
            f"--scale {self.scale}": True,
            f"--network {self.network}": bool(self.network),
            f"--version {self.version}": self.version != "written",
            f"--seeds {self.seeds}": self.seeds > 1,
            f"--precision {self.precision}": self.precision != "float32",
            f"--attack-dtype {self.attack_dtype}": self.attack_dtype != "float32",
        }
        words = ["atlas reproduce", self.artefact.name, *(text for text, given in options.items() if given)]
        return " ".join([*words, *(f"--rows {shlex.quote(key)}" for key in self.only)])


def _applicable(changes: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The changes that apply to the preset: not every method has several steps, or a growing eps."""
    table = presets.load_preset(name)[1] if name in presets.names() else {}
    schedule = table.get("training", {}).get("schedule", {})
    useless = {
        "method.attack.steps": "steps" not in table.get("method", {}).get("attack", {}),
        "training.schedule.ramp_epochs": schedule.get("ramp_epochs") == 0,
        "threat.eps": table.get("threat", {}).get("eps") == 0,
    }
    return {key: value for key, value in changes.items() if not useless.get(key)}
