"""Times of passes and training steps on this machine, a few seconds in all."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from atlas import models
from atlas.attacks import frozen
from atlas.attacks.forms import searched
from atlas.attacks.gradient import input_gradient
from atlas.disk import write_atomic
from atlas.machine import machine, wait_for
from atlas.objectives import margin
from atlas.reproduce.scales import SMOKE_SIDE, TASKS
from atlas.reproduce.timings import training_step
from atlas.training import RunConfig
from atlas.training.precision import crafting_dtype
from atlas.training.run import checked_device

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
