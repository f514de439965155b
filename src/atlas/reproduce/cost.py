"""What an artefact costs: as measured once for all of them, or estimated for this machine from a probe."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from torch import Tensor

from atlas.attacks import Attack, Transfer
from atlas.evaluation.plan import build_attack
from atlas.machine import machine
from atlas.report.comparison import CLEAN
from atlas.reproduce import paper
from atlas.reproduce.artefact import Artefact, Row
from atlas.reproduce.columns import Column
from atlas.reproduce.order import Order, Run
from atlas.reproduce.probe import Probe
from atlas.reproduce.scales import SCALES, SMOKE_TEST, SMOKE_TRAIN, TASKS
from atlas.training import RunConfig

CIFAR_SIZE = (50_000, 10_000)
SIZES = {"mnist": (60_000, 10_000), "mnist-mini": (8000, 2000), "cifar10": CIFAR_SIZE, "cifar100": CIFAR_SIZE}
"""Training and test images."""
A_RUN, AN_EVALUATION = 0.7, 0.2
"""Seconds that they take of themselves: all that they take at scale smoke."""
HALF = 50.0
"""The robust accuracy that is assumed where the paper gives none, in %."""

STORED = "costs.json"
"""Seconds of every artefact at every scale, measured on one machine: what `atlas reproduce --list` shows."""


def stored() -> dict[str, Any]:
    """The costs that come with the package: "machine", and "seconds" by artefact and scale."""
    return dict(json.loads((resources.files("atlas.reproduce") / STORED).read_text("utf-8")))


def measured(artefacts: Iterable[Artefact], probe: Probe, smoke_data: Path) -> dict[str, Any]:
    """The same for this machine, from the times of single steps."""
    seconds = {
        artefact.name: {s: round(Costs(Order(artefact, s, smoke_data), probe).whole(), 1) for s in SCALES}
        for artefact in artefacts
    }
    return {"machine": machine(probe.device or "cpu"), "seconds": seconds}


@dataclass(frozen=True)
class Costs:
    """Estimates for the runs and columns of an order, in seconds."""

    order: Order
    probe: Probe

    def training(self, run: Run, task: str, done: int = 0) -> float:
        """All epochs of a run but those that are done."""
        config, training = run.config, run.config.training
        images = _training_images(config.data) - _validation_images(config)
        validation = _validation_images(config) * training.validation.attack.steps
        epoch = images * self.probe.step(config, task) + validation * self.probe.crafting(config, task)
        return A_RUN + max(0, _epochs(config, task) - done) * epoch

    def attack(self, run: Run, row: Row, column: Column) -> float:
        """The column on the row: all of the budget for the images that the paper's model keeps right."""
        config, n = run.config, column.n or _test_images(run.config.data)
        number = paper.number(row.task, row.paper or row.preset, CLEAN if column.transfer else column.label)
        kept = n * (HALF if number is None else number) / 100
        attacks = [build_attack(table, (_nothing,)) for table in column.attacks.values()]
        return AN_EVALUATION + kept * sum(self._an_image(attack, config, row.task) for attack in attacks)

    def _an_image(self, attack: Attack[Any], config: RunConfig, task: str) -> float:
        dtype = "float32" if attack.needs_precision else self.order.attack_dtype
        forward = self.probe.forward(config, task, dtype)
        gradient = self.probe.gradient(config, task, dtype)
        if isinstance(attack, Transfer):
            step = gradient
        else:
            step = attack.forwards * forward + (gradient - forward) * attack.white_box
        return attack.attempts(TASKS[task]) * attack.steps * step

    def whole(self) -> float:
        """All of the order, from nothing."""
        total, seen = 0.0, set[str]()
        for row in self.order.rows:
            columns = self.order.columns(row)
            runs = [self.order.run(row, seed) for seed in range(self.order.seeds)]
            total += len(runs) * sum(self.attack(runs[0], row, column) for column in columns)
            runs += [self.order.surrogate(row.task)] if any(c.transfer for c in columns) else []
            total += sum(self.training(run, row.task) for run in runs if run.hash not in seen)
            seen |= {run.hash for run in runs}
        return total


def _nothing(x: Tensor) -> Tensor:
    """Stands for a surrogate where only the size of an attack is asked for."""
    return x


def _epochs(config: RunConfig, task: str) -> int:
    """How many a run takes: guided, the paper's best epoch and then as many as it waits for a better one."""
    schedule = config.training.schedule
    early = task == "mnist" and config.method.attack is None
    best = paper.text("best_epoch_jac_mnist" if early else "best_epoch")
    return min(schedule.epochs, best + schedule.patience) if schedule.kind == "guided" else schedule.epochs


def _training_images(data: str) -> int:
    name, _, count = data.partition(":")
    return int(count) if count else SIZES[name][0] if name in SIZES else SMOKE_TRAIN


def _test_images(data: str) -> int:
    name = data.partition(":")[0]
    return SIZES[name][1] if name in SIZES else SMOKE_TEST


def _validation_images(config: RunConfig) -> float:
    size = config.training.validation.size
    return size if size >= 1 else size * _training_images(config.data)
