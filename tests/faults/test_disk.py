"""Disks that are too small, full, read-only or gone: what was saved stays, and the run resumes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from atlas.checkpoint import load_tensors
from tests.faults import disks, runs

SHORT = ("--set", "training.schedule.epochs=8")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small task and an undisturbed run of it, `whole`."""
    folder = tmp_path_factory.mktemp("task")
    runs.make_task(folder)
    with np.load(folder / "task.npz") as data:
        halves = {
            "x_train": data["x"][:8],
            "y_train": data["y"][:8],
            "x_test": data["x"],
            "y_test": data["y"],
        }
        np.savez(folder / "test.npz", **halves)
    runs.train(folder, "whole", *SHORT)
    return folder


def ended(process: runs.Forked, code: int) -> str:
    """Its output, which comes with this exit code."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    return " ".join(output.split())


def test_a_disk_too_small_is_refused_before_the_first_epoch(task: Path) -> None:
    with disks.small_disk(task / "tiny", "32k") as disk:
        said = ended(runs.start(task, "train", "task.toml", "--out", "tiny/run", *SHORT), 6)
        assert "No space left on device; needed" in said
        assert "bytes, free:" in said
        assert not (disk / "run").exists(), "nothing is left of it"


def test_a_disk_that_fills_up_keeps_the_last_state_and_the_run_continues(task: Path) -> None:
    with disks.small_disk(task / "full", "1m") as disk:
        process = runs.start(task, "train", "task.toml", "--out", "full/run", *SHORT)
        runs.wait_for_metrics(disk / "run", process, 1000)
        hog = disks.fill(disk)
        said = ended(process, 6)
        assert "needed" in said
        assert "bytes, free:" in said
        kept = [path for path in (disk / "run").glob("state*.safetensors") if load_tensors(path)]
        assert kept, "nothing to go on from"
        assert not list((disk / "run").glob(".*.part"))
        hog.unlink()
        runs.finish(runs.start(task, "train", "--resume", "full/run"))
        assert runs.outcome(disk / "run") == runs.outcome(task / "whole")


def test_a_read_only_folder_is_said_and_left_alone(task: Path) -> None:
    with disks.small_disk(task / "frozen", "4m") as disk:
        subprocess.run(["cp", "-r", task / "whole", disk / "run"], check=True)
        disks.make_read_only(disk)
        before = {path: path.stat() for path in disk.rglob("*")}
        for command in (
            ("train", "--resume", "frozen/run", *SHORT),
            ("train", "task.toml", "--out", "frozen/new"),
            ("evaluate", "frozen/run", "--data", "test.npz", "--attacks", "pgd"),
        ):
            assert "Read-only file system" in ended(runs.start(task, *command), 6)
        assert {path: path.stat() for path in disk.rglob("*")} == before


def test_a_folder_that_vanishes_is_not_made_anew_and_continues_where_it_was_moved_to(task: Path) -> None:
    """Moved to another name, as to another machine: nothing in it knows where it was."""
    process = runs.start(task, "train", "task.toml", "--out", "here", *SHORT)
    runs.wait_for_metrics(task / "here", process, 1000)
    (task / "here").rename(task / "there")
    assert "No such file or directory" in ended(process, 6)
    assert not (task / "here").exists()
    runs.finish(runs.start(task, "train", "--resume", "there"))
    assert runs.outcome(task / "there") == runs.outcome(task / "whole")
