"""What a training step costs on this machine."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atlas import models
from atlas.data import Batch, Images
from atlas.disk import write_atomic
from atlas.machine import machine, wait_for
from atlas.reproduce.order import Run
from atlas.rng import Rng
from atlas.training import RunConfig
from atlas.training.run import checked_device
from atlas.training.trainer import Trainer

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
