"""What was asked for: an artefact, how much of it, and which runs and evaluations that means."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from atlas import presets
from atlas.attacks import TrainingAttack
from atlas.attacks.model_variants import DTYPES
from atlas.config import fingerprint, overridden
from atlas.errors import UsageError, choose
from atlas.reports.comparison import CLEAN, WORST
from atlas.training import RunConfig
from atlas.training.precision import Precision
from atlas.training.settings import REGISTRIES
from atlas_paper.artefact import Artefact, Column, Row, column
from atlas_paper.paper import TIME
from atlas_paper.scales import ScaleName, Setting, default_network, setting

Version = Literal["written", "tuned"]
SURROGATE, SURROGATE_SEED = "natural", 99
"""The black box attack's surrogate is a model of the same network, trained without an adversary from another
seed than any row: the paper does not say which it takes."""
MOST_SEEDS = 10
DERIVED = (CLEAN, WORST, TIME)
"""Columns that are no attacks."""


@dataclass(frozen=True)
class Run:
    """A training."""

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
        """That trains it by hand."""
        values = {k: str(v).lower() if isinstance(v, bool) else v for k, v in self.changes.items()}
        settings = [f"--set {shlex.quote(f'{key}={value}')}" for key, value in values.items()]
        seed = [f"--seed {self.seed}"] if self.seed else []
        return " ".join(["atlas train", self.preset, *settings, *seed])


def canonical_hash(config: RunConfig) -> str:
    """A hash by which a run is known wherever it lies: of its configuration with its objectives spelled out.

    An attack without an objective climbs that of its method; runs of earlier versions have it in words.
    """
    attack = config.method.attack
    if attack is not None:
        method: Any = config.method  # a dataclass, as all methods are
        config = replace(
            config, method=replace(method, attack=attack.with_default_objective(method.objective))
        )
    training, validation = config.training, config.training.validation
    if isinstance(validation.attack, TrainingAttack):
        validation = replace(validation, attack=validation.attack.with_default_objective("ce"))
    return fingerprint(replace(config, training=replace(training, validation=validation)).table())


@dataclass(frozen=True)
class Request:
    """One artefact at one scale."""

    artefact: Artefact
    scale: ScaleName
    smoke_data: Path
    """Where the made-up images of scale smoke are."""
    network: str = ""
    """Of MNIST; "" for the scale's own."""
    version: Version = "written"
    seeds: int = 1
    only: tuple[str, ...] = ()
    """Keys of rows, or patterns of them; all where there is none."""
    attack_dtype: str = "float32"
    precision: str = "float32"
    """Of all trainings; in a lower one they have channels last where that is fast."""

    def __post_init__(self) -> None:
        choose("attack dtype", self.attack_dtype, DTYPES)
        choose("precision", self.precision, {name: name for name in get_args(Precision)})
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise UsageError(f"seeds is {self.seeds}; wanted 1 to {MOST_SEEDS}")
        if self.seeds > 1 and not self.artefact.columns:
            raise UsageError(f"{self.artefact.name} shows one seed; leave --seeds out")
        if not self.of_mnist and (self.network or self.version != "written"):
            raise UsageError(f"--network and --version are for MNIST; {self.artefact.name} has other data")
        for pattern in self.only:
            if not any(fnmatchcase(row.key, pattern) for row in self.scaled_rows):
                keys = ", ".join(row.key for row in self.scaled_rows)
                raise UsageError(f"{self.artefact.name} has no row {pattern!r}; choose from: {keys}")
        for row in self.rows:
            if (name := self._preset(row)) not in presets.names():
                hint = "; take --version written" if self.version == "tuned" else ""
                if self.artefact.columns and (known := self.all_rows):
                    hint += f", or --rows {','.join(row.key for row in known)}"
                raise UsageError(f"{self.artefact.name} needs the preset {name}, which is not there{hint}")

    @property
    def scaled_rows(self) -> list[Row]:
        """The artefact's rows at this scale."""
        return [row for row in self.artefact.rows if row.smoke or self.scale != "smoke"]

    @property
    def rows(self) -> list[Row]:
        """Those that were asked for."""
        patterns = self.only or ("*",)
        return [row for row in self.scaled_rows if any(fnmatchcase(row.key, p) for p in patterns)]

    @property
    def all_rows(self) -> list[Row]:
        """Those that are shown: of a tuned version, not all rows may have their preset yet."""
        known = set(presets.names())
        return [row for row in self.scaled_rows if self._preset(row) in known]

    @property
    def of_mnist(self) -> bool:
        """Whether all of it is."""
        return {row.task for row in self.artefact.rows} == {"mnist"}

    def setting(self, task: str) -> Setting:
        return setting(self.scale, task, self.network or default_network(self.scale), self.smoke_data)

    def run(self, row: Row, seed: int) -> Run:
        setting = self.setting(row.task)
        name = self._preset(row)
        return Run(name, {**_fitting(setting.changes, name), **row.changes, **self._arithmetic}, seed)

    @property
    def _arithmetic(self) -> dict[str, Any]:
        """What the precision changes in all presets."""
        lower = {"training.precision": self.precision, "training.channels_last": "auto"}
        return {} if self.precision == "float32" else lower

    def _preset(self, row: Row) -> str:
        return f"{self.setting(row.task).prefix}{row.preset}{'-tuned' if self.version == 'tuned' else ''}"

    def surrogate(self, task: str) -> Run:
        setting = self.setting(task)
        name = f"{setting.prefix}{SURROGATE}"
        return Run(name, {**_fitting(setting.changes, name), **self._arithmetic}, SURROGATE_SEED)

    def columns(self, row: Row) -> list[Column]:
        """The evaluations of a row, in the order in which they are made."""
        labels = [c for c in self.artefact.columns_of(row) if c not in DERIVED]
        found = [column(label, row.task, self.setting(row.task)) for label in labels]
        return [c for c in found if c is not None]

    def shown(self, row: Row) -> list[str]:
        """The columns in which a row has a cell: an attack may be none of its data set's."""
        made = {*DERIVED, *(column.label for column in self.columns(row))}
        return [label for label in self.artefact.columns_of(row) if label in made]

    @property
    def name(self) -> str:
        """Of the folder of its results."""
        network = "" if self.network == default_network(self.scale) else self.network
        version = "" if self.version == "written" else self.version
        seeds = "" if self.seeds == 1 else f"{self.seeds}-seeds"
        trained = "" if self.precision == "float32" else f"trained-{self.precision}"
        attacked = "" if self.attack_dtype == "float32" else f"attacked-{self.attack_dtype}"
        parts = [self.artefact.name, self.scale, network, version, seeds, trained, attacked]
        return "-".join(filter(None, parts))

    @property
    def command(self) -> str:
        """That makes it, or goes on with it; without where things lie."""
        words = ["atlas reproduce", self.artefact.name, f"--scale {self.scale}"]
        words += [f"--network {self.network}"] if self.network else []
        words += ["--version tuned"] if self.version == "tuned" else []
        words += [f"--seeds {self.seeds}"] if self.seeds > 1 else []
        words += [f"--precision {self.precision}"] if self.precision != "float32" else []
        words += [f"--attack-dtype {self.attack_dtype}"] if self.attack_dtype != "float32" else []
        return " ".join([*words, *(f"--rows {shlex.quote(key)}" for key in self.only)])


def _fitting(changes: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Those that the preset has a use for: not every method has several steps, or a growing eps."""
    table = presets.load_preset(name)[1] if name in presets.names() else {}
    schedule = table.get("training", {}).get("schedule", {})
    useless = {
        "method.attack.steps": "steps" not in table.get("method", {}).get("attack", {}),
        "training.schedule.ramp_epochs": schedule.get("ramp_epochs") == 0,
        "threat.eps": table.get("threat", {}).get("eps") == 0,
    }
    return {key: value for key, value in changes.items() if not useless.get(key)}
