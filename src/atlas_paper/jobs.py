"""A model to train and to attack, as data: what is done once, and found again by its configuration."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from atlas import presets
from atlas.attacks import TrainingAttack
from atlas.config import fingerprint, overridden
from atlas.training import RunConfig
from atlas.training.settings import REGISTRIES


@dataclass(frozen=True)
class RunSpec:
    """A training: a preset, changes and a seed."""

    preset: str
    changes: Mapping[str, Any]
    """By dotted keys."""
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


def canonical_hash(config: RunConfig) -> str:
    """The hash of a configuration with its default objectives filled in.

    An attack without an objective takes that of its method; runs of earlier versions spell it out.
    """
    method, training, validation = config.method, config.training, config.training.validation
    if method.attack is not None:
        attack = method.attack.with_default_objective(method.objective)
        method = replace(method, attack=attack)  # type: ignore[type-var]  # all methods are dataclasses
    if isinstance(validation.attack, TrainingAttack):
        validation = replace(validation, attack=validation.attack.with_default_objective("ce"))
    training = replace(training, validation=validation)
    return fingerprint(replace(config, method=method, training=training).table())


@dataclass(frozen=True)
class AttackSpec:
    """An attack, or a cascade of them, on some of the test images."""

    label: str
    suite: str
    attacks: Mapping[str, Mapping[str, Any]]
    """Their tables, by the suite's labels."""
    n: int | None
    """Test images; None for all."""
    random: bool = False
    cascade: bool = False
    dtype: str = "float32"
    surrogate: RunSpec | None = None
    """Of a transfer attack."""
    few: bool = False
    """Whether it has fewer images than most: the worst case is taken over the others."""

    @property
    def command(self) -> str:
        """The `atlas evaluate` command."""
        only = "" if self.cascade else "".join(f" --attacks '{label}'" for label in self.attacks)
        images = "" if self.n is None else f" --n {self.n}{' --random' if self.random else ''}"
        surrogate = " --surrogate SURROGATE" if self.surrogate else ""
        precision = "" if self.dtype == "float32" else f" --attack-dtype {self.dtype}"
        return f"atlas evaluate RUN --suite {self.suite}{only}{images}{surrogate}{precision}"


@dataclass(frozen=True)
class Job:
    """A training, the attacks on its model, and whether a step of it is timed."""

    name: str
    """In messages."""
    run: RunSpec
    attacks: tuple[AttackSpec, ...]
    timed_steps: int = 0
    """Of the training; 0 where its time is not asked for."""
    command: str = ""
    """The command that asks for it."""
