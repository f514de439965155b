"""What a training step and a pass of an attack cost on this machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atlas import models
from atlas.data import Images
from atlas.disk import write_atomic
from atlas.reproduce.order import Run
from atlas.rng import Rng
from atlas.training import RunConfig
from atlas.training.run import checked_device

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
            entry = {"seconds": seconds(step, repeats, checked_device(self.device)), **machine()}
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
    """A whole step of the configuration on made-up images: adversary, terms, backward pass, update."""
    place, batch = checked_device(device), batch or config.training.batch_size
    stats = ([0.5] * shape[0], [0.25] * shape[0]) if config.normalize else None
    model = models.build(config.model, num_classes=classes, shape=shape, normalize=stats).to(place).train()
    optimizer = config.training.optimizer.build(model.parameters())
    rng = Rng.batch(batch).fold("timing").to(place)
    x = rng.fold("x").uniform(shape)
    y = torch.arange(batch, device=place) % classes
    weights = list(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss = config.method.loss(model, x, y, threat=config.threat, rng=rng)
        loss.backward(inputs=weights)  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def seconds(work: Callable[[], object], repeats: int, device: torch.device) -> float:
    """The median time of the work, after one go to warm up."""
    work()
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def machine() -> dict[str, Any]:
    """What the time was measured on."""
    return {
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 2),
    }
