"""The settings of training, each next to what it builds; the defaults suit a small data set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from atlas.attacks import ATTACKS, PGD, TRAINING_ATTACKS, Attack, BatchNormMode, TrainingAttack
from atlas.config import Registries, check_counts, check_fields, omit_default_from_hash
from atlas.data import AUGMENTS
from atlas.errors import UsageError, choose
from atlas.methods import METHODS, Method
from atlas.threat import THREATS, Threat
from atlas.training.precision import Precision
from atlas.training.schedule import Schedule

REGISTRIES: Registries = {Method: METHODS, Attack: ATTACKS, TrainingAttack: TRAINING_ATTACKS, Threat: THREATS}


@dataclass(frozen=True)
class Optimizer:
    """The optimiser.

    Args:
        kind: "sgd", "adam" or "adamw".
        lr: the learning rate at the start, > 0.
        momentum: of SGD, >= 0 and < 1.
        nesterov: Nesterov's momentum, of SGD.
        weight_decay: >= 0.

    Raises:
        UsageError: for a value out of its range.

    Example:
        >>> import atlas
        >>> atlas.Training(optimizer=atlas.Optimizer(kind="adam", lr=1e-3)).optimizer.lr
        0.001
    """

    kind: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.lr < float("inf"):
            raise UsageError(f"lr must be > 0 and finite, got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"momentum must be >= 0 and < 1, got {self.momentum}")
        if not 0 <= self.weight_decay < float("inf"):
            raise UsageError(f"weight_decay must be >= 0 and finite, got {self.weight_decay}")
        if self.nesterov and not self.momentum:
            raise UsageError("nesterov needs a momentum above 0")

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        if self.kind == "sgd":
            return torch.optim.SGD(
                parameters, self.lr, self.momentum, weight_decay=self.weight_decay, nesterov=self.nesterov
            )
        adam = torch.optim.Adam if self.kind == "adam" else torch.optim.AdamW
        return adam(parameters, self.lr, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Validation:
    """Which images guide the training, and the attack on them, at the full eps.

    Args:
        size: how many training images are set apart before training starts, or a share of them below 1.
        attack: the attack after each epoch.
        batch_size: how many images each process attacks at a time; None: as many as it trains on at a time,
            at most 256.

    Raises:
        UsageError: for a value out of its range.

    Example:
        >>> import atlas
        >>> atlas.Validation(size=1000, attack=atlas.attacks.PGD(steps=20)).size
        1000
    """

    size: int | float = 0.1
    attack: Attack = PGD(steps=10)
    batch_size: int | None = omit_default_from_hash(None)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.batch_size is not None:
            check_counts(**{"validation.batch_size": self.batch_size})
        if not (0 < self.size < 1 or (1 <= self.size < float("inf") and self.size == int(self.size))):
            raise UsageError(
                f"validation.size must be an integer >= 1, or a share between 0 and 1, got {self.size}"
            )


@dataclass(frozen=True)
class Training:
    """All that `fit` needs beside model, data, method and threat.

    Args:
        batch_size: images per step, over all processes.
        seed: of the order of images, augmentation and attacks.
        augment: "none", or a name in `atlas.data.AUGMENTS`.
        crafting_mode: BatchNorm while an attack runs: its running statistics ("eval") or the batch's
            ("train").
        precision: of the forward and backward passes.
        channels_last: the order of images and weights in memory: the same numbers, up to rounding. "auto":
            what is faster.
        deterministic: use only torch's deterministic algorithms: without them, runs on a GPU differ in their
            last bits.
        ema: decay of the weight average that is evaluated and kept, such as 0.999; 0 for none.
        on_collapse: what to do after catastrophic overfitting: "continue", "stop" or "rollback".
        checkpoint_minutes: states are saved after each epoch, at a signal, and this often within an epoch.
        optimizer: the optimiser.
        schedule: epochs, the learning rate and the growth of eps.
        validation: the images and the attack that guide the training.

    Raises:
        UsageError: for a value out of its range.

    Example:
        >>> import atlas
        >>> atlas.Training(batch_size=64, schedule=atlas.Schedule(epochs=20)).schedule.epochs
        20
    """

    batch_size: int = 128
    seed: int = 0
    augment: str = "none"
    crafting_mode: BatchNormMode = "eval"
    precision: Precision = omit_default_from_hash("float32")
    channels_last: bool | Literal["auto"] = omit_default_from_hash(False)
    deterministic: bool = omit_default_from_hash(False)
    ema: float = 0.0
    on_collapse: Literal["continue", "stop", "rollback"] = "continue"
    checkpoint_minutes: float = 10.0
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    validation: Validation = Validation()

    def __post_init__(self) -> None:
        check_fields(self)
        choose("augment", self.augment, AUGMENTS)
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed must be an integer >= 0 and < 2^63, got {self.seed}")
        if self.batch_size < 2:
            raise UsageError(f"batch_size must be >= 2, got {self.batch_size}")
        if not 0 <= self.ema < 1:
            raise UsageError(f"ema must be 0 (none) or a decay < 1, such as 0.999, got {self.ema}")
        if not self.checkpoint_minutes > 0:
            raise UsageError(f"checkpoint_minutes must be > 0, got {self.checkpoint_minutes}")
