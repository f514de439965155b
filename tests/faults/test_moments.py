"""Killed at moments of every kind: in steps, attacks, validations, saves, evaluations and sweeps.

The model is the user's own code, so it can kill its process at exactly the n-th moment of a kind.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.faults import runs

MODEL = """
import json, os, signal
from pathlib import Path

from torch import nn

wanted = json.loads(Path("kill.json").read_text()) if Path("kill.json").exists() else {}
met = 0


def moment(kind):
    global met
    if kind == wanted.get("kind"):
        met += 1
        if met == wanted["number"]:
            os.kill(os.getpid(), signal.SIGKILL)


def watched(function):
    def call(*arguments, **options):
        moment("save")
        result = function(*arguments, **options)
        moment("save")
        return result
    return call


os.fsync, os.replace = watched(os.fsync), watched(os.replace)


class Small(nn.Sequential):
    def forward(self, x):
        moment("step" if self.training else "attack" if len(x) <= 32 else "validation")
        moment("pass")
        return super().forward(x)


def small(num_classes, shape):
    return Small(
        nn.Conv2d(shape[0], 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(4 * 16, num_classes),
    )
"""
SHORT = (
    *("--set", "training.schedule.epochs=5", "--set", "training.schedule.ramp_epochs=2"),
    *("--set", "training.validation.batch_size=64"),  # a validation is known by batches over 32
)
SUITE = """
attacks = [
    { label = "PGD", name = "pgd", steps = 60, step_size = 0.002 },
    { label = "Square", name = "square", queries = 60 },
]
"""
EVALUATE = ("evaluate", "whole", "--data", "test.npz", "--suite", "suite.toml", "--save-seconds", "0.02")
SWEEP = (
    "sweep",
    "task.toml",
    "--set",
    "training.schedule.epochs=3",
    "--set",
    "training.schedule.ramp_epochs=1",
)

each_size = pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small task and an undisturbed run of it, `whole`."""
    folder = tmp_path_factory.mktemp("task")
    runs.make_task(folder)
    (folder / "their_model.py").write_text(MODEL)
    (folder / "suite.toml").write_text(SUITE)
    with np.load(folder / "task.npz") as data:
        halves = {f"{k}_{half}": data[k][:60] for k in ("x", "y") for half in ("train", "test")}
        np.savez(folder / "test.npz", **halves)
    runs.train(folder, "whole", *SHORT)
    return folder


def killed(
    task: Path, command: Callable[[], tuple[str, ...]], kind: str, moments: Iterator[int], kills: int
) -> int:
    """Start the command so often, each time to be killed at another moment; then let it come to its end."""
    died = 0
    for number in (next(moments) for _ in range(kills)):
        (task / "kill.json").write_text(json.dumps({"kind": kind, "number": number}))
        process = runs.start(task, *command())
        output, _ = process.communicate(timeout=100)
        assert process.returncode in (-9, 0), output
        died += process.returncode == -9
    (task / "kill.json").unlink()
    runs.finish(runs.start(task, *command()))
    print(f"killed and started again: {died}")
    return died


def between(low: int, high: int, seed: object) -> Iterator[int]:
    numbers = random.Random(repr(seed))
    while True:
        yield numbers.randint(low, high)


@each_size
@pytest.mark.parametrize(
    ("kind", "most"),
    [("step", 25), ("attack", 25), ("validation", 3), ("save", 12)],
    ids=lambda value: str(value),
)
def test_training_ends_with_the_same_bits(task: Path, kind: str, most: int, kills: int) -> None:
    out = task / f"{kind}-{kills}"

    def command() -> tuple[str, ...]:
        """What a person does: resume, or begin anew where nothing was begun."""
        begun = (out / "config.json").exists()
        return ("train", "--resume", out.name) if begun else ("train", "task.toml", "--out", out.name, *SHORT)

    assert killed(task, command, kind, between(1, most, (kind, kills)), kills) >= kills // 2
    assert runs.outcome(out) == runs.outcome(task / "whole")
    assert not list(out.rglob(".*.part")), "what a killed write leaves is cleared"


def verdicts(folder: Path) -> dict[str, bytes]:
    names = {path.name for path in folder.iterdir()} - {"timing.jsonl", "lock"}
    return {name: (folder / name).read_bytes() for name in names}


@each_size
@pytest.mark.parametrize(("kind", "most"), [("pass", 120), ("save", 40)])
def test_an_evaluation_ends_with_the_same_bits(task: Path, kind: str, most: int, kills: int) -> None:
    if not (task / "evaluated").exists():
        runs.finish(runs.start(task, *EVALUATE, "--out", "evaluated"))
    out = f"evaluated-{kind}-{kills}"
    assert killed(task, lambda: (*EVALUATE, "--out", out), kind, between(1, most, kind), kills) >= 2
    assert verdicts(task / out) == verdicts(task / "evaluated")


@pytest.mark.slow
def test_the_trials_of_a_sweep_end_with_the_same_bits(task: Path) -> None:
    """An epoch, of 40 passes, is saved before each kill: too few die at one trial for it to be given up."""
    command = (*SWEEP, "--grid", "method.beta=0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8")
    runs.finish(runs.start(task, *command, "--out", "sweep"))
    died = killed(task, lambda: (*command, "--out", "killed-sweep"), "step", between(42, 100, "sweep"), 20)
    assert died >= 10
    for place in sorted((task / "sweep/trials").iterdir()):
        assert runs.outcome(task / "killed-sweep/trials" / place.name) == runs.outcome(place)
    with (task / "killed-sweep/table.csv").open(newline="") as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["done"] * 8
