"""Sweeps by real worker processes: each trial once, none lost with its worker, all bits as undisturbed."""

from __future__ import annotations

import csv
import signal
import subprocess
from pathlib import Path

import pytest

from tests.faults import runs

SHORT = ("--set", "training.schedule.epochs=2", "--set", "training.schedule.ramp_epochs=1")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    runs.make_task(folder)
    return folder


def sweep(task: Path, out: str, *options: str) -> subprocess.Popen[str]:
    return runs.start(task, "sweep", "task.toml", "--out", out, *options)


def rows(folder: Path) -> list[dict[str, str]]:
    """The sweep's table, as other programs read it."""
    with (folder / "table.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_two_workers_do_each_point_of_a_grid_once(task: Path) -> None:
    grid = ("--grid", "method.alpha=1e-4,1e-3", "--grid", "method.beta=0.1,0.5,1")
    workers = [sweep(task, "grid", *grid, *SHORT) for _ in range(2)]
    said = [runs.finish(worker) for worker in workers]
    began = [line.split(";")[0] for output in said for line in output.splitlines() if " of 6: " in line]
    assert len(began) == len(set(began)) == 6, began
    found = rows(task / "grid")
    assert {(float(row["method.alpha"]), float(row["method.beta"])) for row in found} == {
        (alpha, beta) for alpha in (1e-4, 1e-3) for beta in (0.1, 0.5, 1.0)
    }
    assert [row["state"] for row in found] == ["done"] * 6
    scores = [float(row["score (the validation attack)"]) for row in found]
    assert scores == sorted(scores, reverse=True)


def under_way(task: Path, out: str, *options: str) -> subprocess.Popen[str]:
    """A worker in the middle of the first trial, one epoch at least beyond what was there."""
    metrics = task / out / "trials/001/metrics.jsonl"
    size = metrics.stat().st_size if metrics.exists() else 0
    process = sweep(task, out, *options)
    runs.wait_for_metrics(metrics.parent, process, size + 500)
    assert process.poll() is None, process.communicate()[0]
    return process


@pytest.mark.timeout(300)
def test_a_trial_whose_workers_are_killed_and_signalled_ends_with_the_same_bits(task: Path) -> None:
    """The bits of `atlas train` with the same settings."""
    epochs = ("--set", "training.schedule.epochs=9")
    one = ("--grid", "method.beta=0.2", *epochs)
    process = under_way(task, "killed", *one)
    process.kill()
    process.wait(timeout=10)
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 138)):
        process = under_way(task, "killed", *one)
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == code, output
        assert "everything is saved" in output
    runs.finish(sweep(task, "killed", *one))
    trial = task / "killed/trials/001"
    began = [line for line in (trial / "timing.jsonl").read_text().splitlines() if '"event": "epoch"' in line]
    assert sum('"epoch": 0' in line for line in began) == 1, "it was begun anew, not taken up"
    runs.train(task, "whole", "--set", "method.beta=0.2", *epochs)
    assert runs.outcome(trial) == runs.outcome(task / "whole")
    assert [row["state"] for row in rows(task / "killed")] == ["done"]


def test_a_worker_that_lives_keeps_its_trial(task: Path) -> None:
    two = ("--grid", "method.beta=0.5,1")
    first = under_way(task, "stopped", *two)
    first.send_signal(signal.SIGSTOP)
    said = runs.finish(sweep(task, "stopped", *two))
    assert "trial 2 of 2" in said
    assert "trial 1 of 2" not in said
    assert "other workers are still at 1 of the trials" in said
    first.send_signal(signal.SIGCONT)
    runs.finish(first)
    assert len(rows(task / "stopped")) == 2
