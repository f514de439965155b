"""What commands write can be given to others: no host, no user, no path of this machine is in it."""

from __future__ import annotations

import json
import socket
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.command import main
from tests.faults import ranks, runs

MODEL = """
import os, socket

from torch import nn

socket.gethostname = lambda: "host-canary"
os.environ |= {"USER": "user-canary", "LOGNAME": "user-canary", "HOSTNAME": "host-canary"}


def small(num_classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""
SHORT = ("--set", "training.schedule.epochs=2", "--set", "training.schedule.ramp_epochs=1")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("path-canary")
    runs.make_task(folder)
    (folder / "their_model.py").write_text(MODEL)
    with np.load(folder / "task.npz") as data:
        halves = {f"{k}_{half}": data[k] for k in ("x", "y") for half in ("train", "test")}
        np.savez(folder / "halves.npz", **halves)
    return folder


def traces(folder: Path) -> list[str]:
    """What of this machine is in the names and the bytes of the files below the folder."""
    words = [
        "host-canary",
        "user-canary",
        "path-canary",
        str(Path.home()) + "/",
        str(Path(__file__).parents[2]),
    ]
    words += [socket.gethostname()] if len(socket.gethostname()) > 6 else []
    found = []
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        name = str(path.relative_to(folder))
        found += [f"{name}: {word}" for word in words if word.encode() in content or word in name]
    return found


def test_run_folders_and_reports(task: Path) -> None:
    data = ("--set", "data=halves.npz")
    runs.train(task, "out/run", *SHORT, *data)
    process = runs.start(
        task, "train", "task.toml", "--out", "out/stopped", *data, "--set", "training.schedule.epochs=900"
    )
    runs.wait_for_metrics(task / "out/stopped", process, 0)
    process.terminate()
    assert process.wait(timeout=60) == 143
    runs.finish(runs.start(task, "evaluate", "out/run", "--n", "20", "--attacks", "pgd", "--save-images"))
    report = ("report", "out/run", "--n", "20", "--steps", "2", "--plots", "out/plots", "-o")
    runs.finish(runs.start(task, *report, "out/report.html"))
    for kind in ("md", "latex", "csv"):
        runs.finish(runs.start(task, "report", "out/run", "--format", kind, "-o", f"out/table.{kind}"))
    assert len(list((task / "out").rglob("*"))) > 30
    assert traces(task / "out") == []
    assert json.loads((task / "out/run/config.json").read_text())["command"].startswith(
        "atlas train task.toml"
    )


def measure(folder: Path, output: Path) -> None:
    words = ["step", "--model", "their_model:small", "--shape", "1x8x8", "--method", "adv-1", "--batch", "4"]
    words += ["--repeats", "1", "--json", "sweeps/times.json"]
    ranks.command(folder, output, main=partial(main, words))


def test_sweeps_and_measurements(task: Path) -> None:
    runs.finish(
        runs.start(task, "sweep", "task.toml", "--grid", "method.beta=0.2", "--out", "sweeps/one", *SHORT)
    )
    assert ranks.ended(ranks.start(1, measure, task, task / "said")) == [0], (task / "said").read_text()
    assert (task / "sweeps/times.json").exists()
    assert traces(task / "sweeps") == []


@pytest.mark.slow
def test_artefacts(task: Path) -> None:
    command = ("reproduce", "table1-mnist", "--scale", "smoke", "--rows", "adv-1", "--workspace", "paper")
    runs.finish(runs.start(task, *command))
    assert traces(task / "paper") == []


def test_a_trace_is_seen(task: Path, tmp_path: Path) -> None:
    (tmp_path / "host-canary").mkdir()
    (tmp_path / "file").write_text(f"in {task}")
    assert len(traces(tmp_path)) == 2
