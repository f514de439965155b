"""Real training processes on a small task, for tests that disturb them.

The model has dropout and BatchNorm, so that a resume which loses torch's generator or a buffer shows.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tests.faults import ranks

MODEL = """
from torch import nn

def small(num_classes, shape):
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(8 * 16, num_classes),
    )
"""
CONFIG = """
data = "task.npz"
model = "their_model:small"

[threat]
name = "linf"
eps = "26/255"

[method]
name = "atlas"
alpha = 1e-3
beta = 0.5

[training]
batch_size = 32
ema = 0.9
checkpoint_minutes = 0.002

[training.optimizer]
lr = 0.05

[training.schedule]
epochs = 16
ramp_epochs = 3

[training.validation]
size = 64

[training.validation.attack]
name = "pgd"
steps = 5
"""


def make_task(folder: Path) -> None:
    """Write the model, the data (four classes of bright quarters under noise) and the configuration."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 704)
    x = rng.uniform(0, 0.6, (704, 1, 8, 8))
    for k, (row, column) in enumerate([(0, 0), (0, 4), (4, 0), (4, 4)]):
        x[y == k, :, row : row + 4, column : column + 4] += 0.25
    np.savez(folder / "task.npz", x=(x * 255).astype(np.uint8), y=y)
    (folder / "their_model.py").write_text(MODEL)
    (folder / "task.toml").write_text(CONFIG)


class Forked:
    """`atlas ARGUMENTS` in a folder, as a process of its own, with the methods of `subprocess.Popen`.

    Forked from one that has imported everything, so that a start takes a moment and not seconds.
    """

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        handle, self.output = tempfile.mkstemp(prefix="output-", dir=folder.parent)
        os.close(handle)
        # The one that it is forked from has an older environment than ours.
        told = (folder, self.output, arguments, dict(os.environ))
        self.process = _context.Process(target=_atlas, args=told, daemon=True)
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("atlas", timeout)
        return self.process.exitcode

    def communicate(self, timeout: float) -> tuple[str, None]:
        self.wait(timeout)
        return Path(self.output).read_text(), None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()


_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(ranks.PRELOAD)


def _atlas(folder: Path, output: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
    from atlas.cli import main

    os.environ.clear()
    os.environ.update(environment)

    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.argv = ["atlas", *arguments]
    main()


def start(folder: Path, *arguments: str) -> Forked:
    """`atlas ARGUMENTS` in this folder, as a process of its own."""
    return Forked(folder, arguments)


def finish(process: Forked) -> str:
    """Wait for success; the process's output."""
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    return output


def train(folder: Path, out: str, *more: str) -> str:
    """An undisturbed run."""
    return finish(start(folder, "train", "task.toml", "--out", out, *more))


def wait_for_metrics(run: Path, process: Forked, size: int) -> None:
    """Until the run's metrics have grown beyond this many bytes, or the process has ended."""
    metrics = run / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > size):
        assert time.monotonic() < deadline, "the run does not get going"
        time.sleep(0.01)


OUTCOME = ("best.safetensors", "last.safetensors", "metrics.jsonl")


def outcome(run: Path) -> dict[str, bytes]:
    """What must be the same to the bit, however a run was disturbed."""
    return {name: (run / name).read_bytes() for name in OUTCOME}
