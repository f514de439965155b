"""Train, disturb, resume and evaluate for hours; nothing may be lost, no bit may differ, no memory may grow.

python scripts/soak.py --minutes 120

Each round trains a small network and evaluates it, in processes that are killed, signalled, frozen and whose
newest state is damaged, at random moments, and resumed until they come to their end. Weights, metrics and
verdicts are compared bit by bit with those of undisturbed processes. Exit code 0: all the same.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch

import atlas
from atlas.attacks import PGD
from atlas.methods import Atlas
from atlas.training import Schedule, Training, Validation
from atlas_paper.workspace import commit

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
model = "soaked_model:small"
threat = { name = "linf", eps = 0.1 }
method = { name = "atlas", alpha = 1e-3, beta = 0.5 }
[training]
batch_size = 32
ema = 0.9
checkpoint_minutes = 0.002
optimizer = { lr = 0.05 }
schedule = { epochs = 12, ramp_epochs = 3 }
validation = { size = 64, attack = { name = "pgd", steps = 5 } }
"""
SUITE = """
attacks = [
    { label = "PGD", name = "pgd", steps = 200, step_size = 0.002 },
    { label = "margin", name = "un-t", steps = 40, restarts = 3 },
    { label = "Square", name = "square", queries = 200 },
]
"""
FAULTS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP)
STATE, PREVIOUS = "state.safetensors", "state.previous.safetensors"
WARM_UP = 3
"""Rounds after which memory has to stay as it is."""
GROWTH = 32 << 20
PATIENCE = 600
"""Seconds for what takes one or two on a machine with nothing else to do."""

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["atlas.cli.app"])


def command(folder: Path, arguments: tuple[str, ...]) -> None:
    """`atlas ARGUMENTS` in the folder, in a process of its own, which keeps what it says."""
    from atlas.cli import main

    with (folder / "output.txt").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    torch.set_num_threads(1)
    os.chdir(folder)
    sys.argv = ["atlas", *arguments]
    main()


def start(folder: Path, *arguments: str) -> BaseProcess:
    (folder / "output.txt").write_text("")
    process = context.Process(target=command, args=(folder, arguments), daemon=True)
    process.start()
    return process


class Soak:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.resumed = self.compared = self.bits = 0
        self.memory: list[int] = []

    def prepare(self) -> None:
        """The task, and an undisturbed run and evaluation of it."""
        rng = np.random.default_rng(0)
        y = rng.integers(0, 4, 704)
        x = rng.uniform(0, 0.6, (704, 1, 8, 8))
        for k, (row, column) in enumerate([(0, 0), (0, 4), (4, 0), (4, 4)]):
            x[y == k, :, row : row + 4, column : column + 4] += 0.25
        x = (x * 255).astype(np.uint8)
        np.savez(self.folder / "task.npz", x_train=x, y_train=y, x_test=x[:150], y_test=y[:150])
        for name, text in {"soaked_model.py": MODEL, "task.toml": CONFIG, "suite.toml": SUITE}.items():
            (self.folder / name).write_text(text)
        for arguments in (("train", "task.toml", "--out", "whole"), self.evaluation("whole")):
            self.finish(start(self.folder, *arguments))

    def evaluation(self, run: str) -> tuple[str, ...]:
        words = ("evaluate", run, "--suite", "suite.toml", "--batch-size", "64", "--save-seconds", "0.05")
        return (*words, "--out", f"{run}/verdicts")

    def wait_for_end(self, process: BaseProcess) -> None:
        """Who does not end at all is made to say where it is."""
        process.join(PATIENCE)
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGABRT)
            process.join()

    def finish(self, process: BaseProcess) -> None:
        self.wait_for_end(process)
        if process.exitcode != 0:
            raise SystemExit(f"ended with {process.exitcode}: {(self.folder / 'output.txt').read_text()}")

    def round(self, number: int) -> None:
        run = f"run-{number}"
        first = ("train", "task.toml", "--out", run)
        self.disturb(run, f"{run}/metrics.jsonl", first, ("train", "--resume", run))
        self.disturb(run, f"{run}/verdicts/clean.npz", self.evaluation(run), self.evaluation(run))
        self.compare(run)
        self.in_this_process()

    def disturb(self, run: str, sign: str, first: tuple[str, ...], again: tuple[str, ...]) -> None:
        """Fault after fault, until the process has come to its end in spite of them."""
        begun = False
        for attempt in range(1000):
            process = start(self.folder, *(again if begun else first))
            self.resumed += attempt > 0
            self.wait(process, self.folder / sign)
            if not process.is_alive():
                return self.finish(process)
            self.strike(process)
            begun = (self.folder / run / "config.json").exists()
            self.damage(self.folder / run)
        raise SystemExit(f"{run} does not come to its end")

    def wait(self, process: BaseProcess, sign: Path) -> None:
        """Until some moment: of the start, or more often after the work has gone on."""
        if self.chance.random() < 0.8:
            size = sign.stat().st_size if sign.exists() else 0
            deadline = time.monotonic() + PATIENCE
            while process.is_alive() and time.monotonic() < deadline:
                if sign.exists() and sign.stat().st_size > size:
                    break
                time.sleep(0.01)
        process.join(self.chance.uniform(0, 0.7))

    def strike(self, process: BaseProcess) -> None:
        fault = self.chance.choice(FAULTS)
        assert process.pid is not None
        with suppress(ProcessLookupError):  # it may have come to its end meanwhile
            os.kill(process.pid, fault)
            self.faults[fault.name] += 1
            if fault == signal.SIGSTOP:
                time.sleep(0.2)
                os.kill(process.pid, signal.SIGCONT)
                process.join(self.chance.uniform(0, 0.3))
                process.kill()
        self.wait_for_end(process)
        # Before its own handlers are there, a process dies of a signal as any does.
        fine = {0, 128 + fault, -fault, -signal.SIGKILL}
        said = (self.folder / "output.txt").read_text()
        if process.exitcode not in fine and said and "KeyboardInterrupt" not in said:
            raise SystemExit(f"{fault.name} ended it with {process.exitcode}: {said}")

    def damage(self, run: Path) -> None:
        """The newest state, as a bad disk would: the one before it has to do."""
        state = run / STATE
        if not (state.exists() and (run / PREVIOUS).exists()) or self.chance.random() > 0.2:
            return
        data = bytearray(state.read_bytes())
        if self.chance.random() < 0.5:
            data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
            self.faults["bit flipped"] += 1
        else:
            del data[self.chance.randrange(len(data)) :]
            self.faults["truncated"] += 1
        state.write_bytes(data)

    def compare(self, run: str) -> None:
        """All but the times, the lock and what resuming needed."""
        whole = self.folder / "whole"
        files = [whole / name for name in ("best.safetensors", "last.safetensors", "metrics.jsonl")]
        files += [p for p in (whole / "verdicts").iterdir() if p.name not in ("timing.jsonl", "lock")]
        for path in files:
            other = self.folder / run / path.relative_to(whole)
            self.bits += differing(path.read_bytes(), other.read_bytes() if other.exists() else b"")
        left = [p.name for p in (self.folder / run).rglob(".*.part")]
        if left:
            raise SystemExit(f"{run} has leftovers: {left}")
        self.compared += 1
        if self.bits == 0:
            shutil.rmtree(self.folder / run)

    def in_this_process(self) -> None:
        """A training and an evaluation here, whose memory has to come back."""
        with np.load(self.folder / "task.npz") as data:
            x, y = torch.from_numpy(data["x_train"]), torch.from_numpy(data["y_train"])
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 4))
        attack = Validation(size=64, attack=PGD(steps=2))
        training = Training(batch_size=32, schedule=Schedule(epochs=1, ramp_epochs=0), validation=attack)
        folder, threat = self.folder / "here", atlas.Linf(0.1)
        atlas.fit(
            net, (x, y), Atlas(1e-3, 0.5), threat=threat, training=training, folder=folder, progress=False
        )
        atlas.evaluate(net, (x[:100], y[:100]), threat, attacks={"PGD": PGD(steps=5)}, progress=False)
        shutil.rmtree(folder)
        gc.collect()
        self.memory.append(resident())

    @property
    def growth(self) -> int:
        return max(self.memory[-1] - self.memory[min(WARM_UP, len(self.memory)) - 1], 0)

    def record(self, minutes: float) -> dict[str, object]:
        return {
            "minutes": round(minutes, 1),
            "rounds compared": self.compared,
            "faults injected": sum(self.faults.values()),
            "of these": dict(sorted(self.faults.items())),
            "runs resumed": self.resumed,
            "bits differing": self.bits,
            "memory in MB": self.memory[-1] >> 20,
            "MB more than after the warm-up": self.growth >> 20,
        }


def differing(a: bytes, b: bytes) -> int:
    """Bits in which two files differ; what only one of them has differs whole."""
    short = min(len(a), len(b))
    both = np.frombuffer(a[:short], np.uint8) ^ np.frombuffer(b[:short], np.uint8)
    return int(np.unpackbits(both).sum()) + 8 * abs(len(a) - len(b))


def resident() -> int:
    """Bytes of memory that this process has now; where Linux does not tell, the most it ever had."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="keep the counts in this file too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="atlas-soak-") as folder:
        soak = Soak(Path(folder), arguments.seed)
        soak.prepare()
        while not soak.compared or time.monotonic() - began < 60 * arguments.minutes:
            soak.round(soak.compared)
            print(f"{(time.monotonic() - began) / 60:.1f} minutes: {dict(soak.faults)}", flush=True)
    record = soak.record((time.monotonic() - began) / 60)
    print("\n".join(f"{name}: {value}" for name, value in record.items()))
    if arguments.json:
        about = {"commit": commit(), "seed": arguments.seed}
        arguments.json.write_text(json.dumps(about | record, indent=1) + "\n")
    sys.exit(1 if soak.bits or soak.growth > GROWTH else 0)


if __name__ == "__main__":
    main()
