"""What an artefact costs: as measured once for all of them, or estimated for this machine from a probe."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atlas import models
from atlas.attacks import Attack, Transfer, frozen
from atlas.attacks.gradients import input_gradient
from atlas.attacks.model_variants import searched
from atlas.data import Batch, Images
from atlas.evaluation.plan import build_attack
from atlas.files import write_atomic
from atlas.machine import machine, wait_for
from atlas.objectives import margin
from atlas.reports.comparison import CLEAN
from atlas.rng import Rng
from atlas.training import RunConfig
from atlas.training.precision import crafting_dtype
from atlas.training.run import checked_device
from atlas.training.trainer import Trainer
from atlas_paper import paper
from atlas_paper.artefact import Artefact, Column, Row
from atlas_paper.request import Request, Run
from atlas_paper.scales import SCALES, SMOKE_SIDE, SMOKE_TEST, SMOKE_TRAIN, TASKS

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
    return dict(json.loads((resources.files("atlas_paper") / STORED).read_text("utf-8")))


def measured(artefacts: Iterable[Artefact], probe: Probe, smoke_data: Path) -> dict[str, Any]:
    """The same for this machine, from the times of single steps."""
    seconds = {
        artefact.name: {s: round(Costs(Request(artefact, s, smoke_data), probe).whole(), 1) for s in SCALES}
        for artefact in artefacts
    }
    return {"machine": machine(probe.device or "cpu"), "seconds": seconds}


@dataclass(frozen=True)
class Costs:
    """Estimates for the runs and columns of an order, in seconds."""

    order: Request
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


PIECE = 0.15
"""Seconds that one measurement is meant to take ..."""
LONG = 0.5
"""... and above which the first go counts, although it warms up."""
MOST_IMAGES = 64


def shape_of(config: RunConfig, task: str) -> tuple[int, int, int]:
    """(C, H, W) of its images."""
    if task == "mnist":
        return 1, 28, 28
    return (3, SMOKE_SIDE, SMOKE_SIDE) if config.data.endswith(".npz") else (3, 32, 32)


@dataclass
class Probe:
    """Times of passes and steps, a few seconds in all, kept in a file for the next time."""

    path: Path
    device: str | None = None
    say: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        here = machine(checked_device(self.device))
        self._here = json.dumps({k: v for k, v in here.items() if k != "load_before"}, sort_keys=True)
        try:
            self._all: dict[str, dict[str, float]] = dict(json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):
            self._all = {}
        self._known = self._all.setdefault(self._here, {})

    def _measured(self, key: str, make: Callable[[int], Callable[[], object]], images: int) -> float:
        """Seconds an image of the work that `make` makes for a number of images."""
        if key not in self._known:
            self.say(f"probing {key}")
            self._known[key] = _time(make(images), checked_device(self.device)) / images
            write_atomic(self.path, (json.dumps(self._all, indent=1) + "\n").encode())
        return self._known[key]

    def forward(self, config: RunConfig, task: str, dtype: str = "float32") -> float:
        """A forward pass, an image."""
        key = f"{config.model} {shape_of(config, task)} {dtype} forward"
        rough = self._measured(f"{key}, 2 images", lambda n: self._pass(config, task, n, dtype, False), 2)
        return self._measured(key, lambda n: self._pass(config, task, n, dtype, False), _fitting(rough))

    def gradient(self, config: RunConfig, task: str, dtype: str = "float32") -> float:
        """A forward pass and the gradient with respect to the image."""
        images = _fitting(3 * self.forward(config, task, dtype))
        key = f"{config.model} {shape_of(config, task)} {dtype} gradient"
        return self._measured(key, lambda n: self._pass(config, task, n, dtype, True), images)

    def crafting(self, config: RunConfig, task: str) -> float:
        """A step of an attack in training, or in its validation."""
        return self.gradient(config, task, crafting_dtype(config.training.precision))

    def step(self, config: RunConfig, task: str) -> float:
        """A training step, an image. That of several attack steps is put together from one of one."""
        method: Any = config.method
        attack: Any = method.attack
        more = 0.0
        if attack is not None:
            more = (attack.steps - 1) * self.crafting(config, task)
            config = replace(config, method=replace(method, attack=_one_step(attack)))
        terms = "+".join(name for name, weight in config.method.weights.items() if weight)
        what = f"{type(method).__name__} {terms} {config.training.precision}"
        key = f"{config.model} {shape_of(config, task)} {what}"
        images = _fitting(10 * self.forward(config, task))
        shape, classes = shape_of(config, task), TASKS[task]
        return more + self._measured(
            key, lambda n: training_step(config, shape, classes, n, self.device), images
        )

    def _pass(
        self, config: RunConfig, task: str, images: int, dtype: str, gradient: bool
    ) -> Callable[[], object]:
        place = checked_device(self.device)
        model = models.build(config.model, num_classes=TASKS[task], shape=shape_of(config, task)).to(place)
        x = torch.full((images, *shape_of(config, task)), 0.5, device=place)
        y = torch.zeros(images, dtype=torch.int64, device=place)
        search = searched(model, dtype)

        def work() -> object:
            with frozen(model):
                if gradient:
                    return input_gradient(search, x, lambda logits: margin(logits, y))
                with torch.no_grad():
                    return search(x)

        return work


def _time(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the second go, or of the first where that is long.

    On a CPU one thread's own time, which neighbours do not prolong, over the number of cores: so long it
    takes if every core has a process of its own.
    """
    cpu = device.type == "cpu"
    clock, threads = (time.process_time if cpu else time.perf_counter), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(2):
            began = clock()
            work()
            wait_for(device)
            spent = clock() - began
            if spent > LONG:
                break
    finally:
        torch.set_num_threads(threads)
    return spent / (os.cpu_count() or 1) if cpu else spent


def _fitting(an_image: float) -> int:
    """How many images keep a measurement short; two at least, for BatchNorm."""
    return int(min(MOST_IMAGES, max(2, PIECE / an_image)))


def _one_step(attack: Any) -> Any:
    return attack if attack.steps == 1 else replace(attack, steps=1)


REPEATS = 5


@dataclass(frozen=True)
class Timings:
    """Seconds a training step, measured once for each configuration, whatever its seed, and kept."""

    path: Path
    device: str | None

    def measure(self, run: Run, images: Images, repeats: int = REPEATS) -> None:
        """The seconds a batch, unless they are known."""
        if self.known(run) is None:
            step = training_step(run.config, images.shape, images.num_classes, device=self.device)
            place = checked_device(self.device)
            entry = {"seconds": seconds(step, repeats, place), **machine(place)}
            # Read again: another process may have measured something meanwhile.
            table = {**self._read(), self._key(run): entry}
            write_atomic(self.path, (json.dumps(table, indent=2) + "\n").encode())

    def known(self, run: Run) -> dict[str, Any] | None:
        """Its seconds, and what they were measured on."""
        return self._read().get(self._key(run))

    def _key(self, run: Run) -> str:
        return f"{Run(run.preset, run.changes, 0).hash} on {checked_device(self.device)}"

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):
            return {}


def training_step(
    config: RunConfig, shape: tuple[int, ...], classes: int, batch: int = 0, device: str | None = None
) -> Callable[[], None]:
    """A training step of the configuration on a batch of made-up images, at the full eps."""
    place, batch = checked_device(device), batch or config.training.batch_size
    stats = ([0.5] * shape[0], [0.25] * shape[0]) if config.normalize else None
    model = models.build(config.model, num_classes=classes, shape=shape, normalize=stats).to(place)
    optimizer = replace(config.training.optimizer, lr=1e-5)  # so that the weights stay where they are
    schedule = replace(config.training.schedule, ramp_epochs=0)
    training = replace(config.training, batch_size=batch, optimizer=optimizer, schedule=schedule)
    ids = torch.arange(batch, device=place)
    made_up = Batch(ids, Rng.lanes(0, ids).fold("timing").uniform(shape), ids % classes)
    trainer = Trainer.of_batch(model, made_up, classes, config.method, config.threat, training)
    trainer.at.batch = 1  # the last step of an epoch, of one batch, would look at the Jacobian besides
    return partial(trainer.step, made_up)


def seconds(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """The median time of the work, after one go to warm up."""
    work()
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        wait_for(device)
        found.append(time.perf_counter() - began)
    return statistics.median(found)
