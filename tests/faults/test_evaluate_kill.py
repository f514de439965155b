"""An evaluation that is killed, signalled or shared among processes comes to the same verdicts."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from atlas.files import in_use
from tests.faults import runs

SUITE = """
attacks = [
    { label = "PGD", name = "pgd", steps = 300, step_size = 0.002 },
    { label = "margin", name = "un-t", steps = 60, restarts = 3 },
    { label = "Square", name = "square", queries = 300 },
]
"""
EVALUATE = ("evaluate", "run", "--data", "test.npz", "--suite", "suite.toml", "--save-images")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run and an undisturbed evaluation of it, `whole`."""
    folder = tmp_path_factory.mktemp("task")
    runs.make_task(folder)
    with np.load(folder / "task.npz") as data:
        few = {"x_train": data["x"][:8], "y_train": data["y"][:8]}
        np.savez(folder / "test.npz", x_test=data["x"][:150], y_test=data["y"][:150], **few)
    (folder / "suite.toml").write_text(SUITE)
    runs.train(folder, "run", "--set", "training.schedule.epochs=6")
    runs.finish(runs.start(folder, *EVALUATE, "--out", "whole"))
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """What must be the same to the bit; seconds and the lock need not."""
    names = {path.name for path in folder.iterdir()} - {"timing.jsonl", "lock"}
    return {name: (folder / name).read_bytes() for name in names}


def verdicts(folder: Path) -> dict[str, list[float]]:
    """Attempt, step and queries of each example under each attack."""
    found = {}
    for path in folder.glob("attack-*.npz"):
        with np.load(path) as columns:
            found |= {f"{path.stem} {n}": columns[n].tolist() for n in ("attempt", "step", "queries")}
    return found


def test_the_task_has_both_verdicts(task: Path) -> None:
    worst = json.loads((task / "whole/summary.json").read_text())["accuracy"]["worst case"]
    assert 0.1 < worst["rate"] < 0.9
    assert len(verdicts(task / "whole")) == 9


def test_sigkill_at_random_moments_then_the_same_command_gives_the_same_bits(task: Path) -> None:
    moments, out = random.Random(1), task / "killed"
    command = (*EVALUATE, "--out", "killed", "--save-seconds", "0.05", "--batch-size", "64")
    runs.finish(runs.start(task, *EVALUATE, "--out", "undisturbed", "--batch-size", "64"))
    kills = resumed = 0
    for _ in range(30):
        process = runs.start(task, *command)
        # Until an attack has been cut off on its way, which is the hard case, not by chance.
        awaited = ("state-*", "*.npz") if resumed else ("state-*",)
        deadline = time.monotonic() + 60
        while process.poll() is None and not any(list(out.glob(kind)) for kind in awaited):
            assert time.monotonic() < deadline, "the evaluation does not get going"
            time.sleep(0.001)
        if resumed:
            time.sleep(moments.uniform(0.1, 0.8))
        if process.poll() is not None:
            break
        process.kill()
        process.wait(timeout=10)
        kills += 1
        resumed += bool(list(out.glob("state-*")))
    runs.finish(runs.start(task, *command))
    assert kills >= 2
    assert resumed, "no attack was cut off on its way"
    assert files(out) == files(task / "undisturbed")
    assert verdicts(out) == verdicts(task / "whole")


@pytest.mark.parametrize(
    ("number", "code", "processes"),
    [(signal.SIGTERM, 143, "1"), (signal.SIGHUP, 129, "1"), (signal.SIGINT, 130, "2")],
)
def test_a_signal_saves_and_exits(task: Path, number: signal.Signals, code: int, processes: str) -> None:
    name = f"signal-{code}-{processes}"
    command = (*EVALUATE, "--out", name, "--processes", processes)
    process = runs.start(task, *command)
    deadline = time.monotonic() + 60
    begun = "config.json" if processes == "1" else "shard-*/config.json"  # signals are heard by then
    while process.poll() is None and not list((task / name).glob(begun)):
        assert time.monotonic() < deadline, "the evaluation does not get going"
        time.sleep(0.01)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert "everything is saved" in output
    runs.finish(runs.start(task, *command))
    assert verdicts(task / name) == verdicts(task / "whole")


@pytest.mark.parametrize(("batch_size", "processes"), [("7", "1"), ("500", "2"), ("64", "3")])
def test_batches_and_processes_change_no_verdict(task: Path, batch_size: str, processes: str) -> None:
    name = f"batch-{batch_size}-{processes}"
    options = ("--out", name, "--batch-size", batch_size, "--processes", processes)
    runs.finish(runs.start(task, *EVALUATE, *options))
    assert verdicts(task / name) == verdicts(task / "whole")
    assert (task / name / "summary.json").read_bytes() == (task / "whole/summary.json").read_bytes()


SLOWLY = ("--batch-size", "4")
"""So that there is time to find the workers; batches change no verdict."""


def worker_of(folder: Path, parent: subprocess.Popen[str]) -> int:
    """The process that works on a shard, once it has taken the lock."""
    lock = folder / "lock"
    deadline = time.monotonic() + 60
    while parent.poll() is None and not (lock.exists() and lock.read_text()):
        assert time.monotonic() < deadline, "the evaluation does not get going"
        time.sleep(0.01)
    return int(lock.read_text().split()[1])


def test_torchrun_shares_the_images(task: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "atlas", *EVALUATE, "--out", "torchrun", "--json"]
    done = subprocess.run(command, cwd=task, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert verdicts(task / "torchrun") == verdicts(task / "whole")
    told, kept = json.loads(done.stdout), json.loads((task / "whole/summary.json").read_text())
    assert told["accuracy"] == kept["accuracy"], "told once, by one process"
    before = [path.stat().st_mtime_ns for path in sorted((task / "torchrun").glob("attack-*"))]
    again = subprocess.run(command, cwd=task, capture_output=True, text=True, timeout=100)
    assert again.returncode == 0, again.stderr
    after = [path.stat().st_mtime_ns for path in sorted((task / "torchrun").glob("attack-*"))]
    assert (after, json.loads(again.stdout)["accuracy"]) == (before, kept["accuracy"]), "nothing is run twice"


TALKS = """
import sys
from torch import nn

class Talks(nn.Sequential):
    def forward(self, x):
        sys.stderr.write("x" * 2000)
        return super().forward(x)

def network(num_classes, shape):
    return Talks(nn.Flatten(), nn.Linear(64, num_classes))
"""


def test_a_model_may_say_more_than_a_pipe_holds(task: Path) -> None:
    (task / "talks.py").write_text(TALKS)
    command = ("talks:network", "--data", "test.npz", "--eps", "0.01", "--suite", "suite.toml", "--n", "20")
    runs.finish(runs.start(task, "evaluate", *command, "--attacks", "PGD", "--processes", "2"))


def test_a_killed_worker_ends_them_all_and_the_same_command_continues(task: Path) -> None:
    command = (*EVALUATE, "--out", "lost", "--processes", "2", "--save-seconds", "0.05")
    process = runs.start(task, *command, *SLOWLY)
    os.kill(worker_of(task / "lost/shard-1-of-2", process), signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 8, output
    assert "process 1 of 2" in output
    runs.finish(runs.start(task, *command))
    assert verdicts(task / "lost") == verdicts(task / "whole")


@pytest.mark.parametrize(("interrupted", "code"), [(True, 130), (False, 8)], ids=["ctrl-c", "timeout"])
def test_a_stopped_worker_cannot_keep_the_others_or_the_folder(
    task: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool, code: int
) -> None:
    monkeypatch.setenv("ATLAS_WORKER_TIMEOUT", "6")
    command = (*EVALUATE, "--out", f"frozen-{code}", "--processes", "2")
    process = runs.start(task, *command, *SLOWLY)
    shards = [task / f"frozen-{code}/shard-{index}-of-2" for index in range(2)]
    workers = [worker_of(shard, process) for shard in shards]
    os.kill(workers[1], signal.SIGSTOP)
    if interrupted:
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert "process 1 of 2 gave no sign of life" in output
    assert not any(map(alive, workers))
    assert not any(map(in_use, [task / f"frozen-{code}", *shards]))
    runs.finish(runs.start(task, *command[:-2]))
    assert verdicts(task / f"frozen-{code}") == verdicts(task / "whole")


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_leave_when_their_parent_is_killed(task: Path) -> None:
    command = (*EVALUATE, "--out", "orphans", "--processes", "2")
    process = runs.start(task, *command, *SLOWLY)
    workers = [worker_of(task / f"orphans/shard-{index}-of-2", process) for index in range(2)]
    process.kill()
    process.wait(timeout=10)
    deadline = time.monotonic() + 30
    while any(map(alive, workers)):
        assert time.monotonic() < deadline, "a worker outlives its parent"
        time.sleep(0.05)
    runs.finish(runs.start(task, *command))
    assert verdicts(task / "orphans") == verdicts(task / "whole")


def test_ctrl_c_at_a_terminal_saves(task: Path) -> None:
    """A terminal signals all processes of the group, the workers too unless they have one of their own."""
    command = [sys.executable, "-m", "atlas", *EVALUATE, "--out", "terminal", "--processes", "2"]
    command += ["--save-seconds", "1000", *SLOWLY]
    process = subprocess.Popen(
        command, cwd=task, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    )
    for index in range(2):
        worker = worker_of(task / f"terminal/shard-{index}-of-2", process)
        assert os.getpgid(worker) != process.pid, "it would hear the signal twice, and not wait to save"
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    saved = [
        list((task / f"terminal/shard-{index}-of-2").glob("*.npz"))
        + list((task / f"terminal/shard-{index}-of-2").glob("state-*"))
        for index in range(2)
    ]
    assert all(saved), "a worker left without saving"
    runs.finish(runs.start(task, *command[3 : -len(SLOWLY)]))
    assert verdicts(task / "terminal") == verdicts(task / "whole")
