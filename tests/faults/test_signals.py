"""Signals in the middle of a batch, twice, and at the wrong time of day; two at work in one folder."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest

from tests.faults import runs

MODEL = """
import time
from pathlib import Path

from torch import nn

real, slow = time.time, Path("slow")
if Path("backwards").exists():
    time.time = lambda: 2e9 - real()


class Small(nn.Sequential):
    def forward(self, x):
        if slow.exists() and (slow.read_text() == "step") == self.training:
            Path("within").write_text("")
            time.sleep(5)
        return super().forward(x)


def small(num_classes, shape):
    return Small(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, num_classes))
"""
SHORT = ("--set", "training.schedule.epochs=6", "--set", "training.checkpoint_minutes=60")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small task and an undisturbed run of it, `whole`."""
    folder = tmp_path_factory.mktemp("task")
    runs.make_task(folder)
    (folder / "their_model.py").write_text(MODEL)
    runs.train(folder, "whole", *SHORT)
    return folder


def within(task: Path, out: str, where: str) -> runs.Forked:
    """A run that is in the middle of a batch, and will be for some seconds."""
    process = runs.start(task, "train", "task.toml", "--out", out, *SHORT)
    runs.wait_for_metrics(task / out, process, 0)
    (task / "slow").write_text(where)
    deadline = time.monotonic() + 60
    while not (task / "within").exists():
        assert time.monotonic() < deadline, "it never came there"
        time.sleep(0.01)
    (task / "slow").unlink()
    (task / "within").unlink()
    return process


@pytest.mark.parametrize(
    ("number", "where"), [(signal.SIGTERM, "attack"), (signal.SIGINT, "step")], ids=["attack", "step"]
)
def test_a_signal_within_a_batch_is_heard_at_its_end(task: Path, number: signal.Signals, where: str) -> None:
    process = within(task, f"within-{where}", where)
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)  # the rest of the batch, not of the epochs
    assert process.returncode == 128 + number, output
    assert "everything is saved" in output
    runs.finish(runs.start(task, "train", "--resume", f"within-{where}"))
    assert runs.outcome(task / f"within-{where}") == runs.outcome(task / "whole")


def test_a_signal_before_the_first_attack_of_an_evaluation_is_heard_too(task: Path) -> None:
    """Clean answers and honesty checks are hundreds of passes, each of which is slow here."""
    with np.load(task / "task.npz") as data:
        halves = {f"{k}_{half}": data[k][:64] for k in ("x", "y") for half in ("train", "test")}
        np.savez(task / "halves.npz", **halves)
    (task / "slow").write_text("attack")
    command = ("evaluate", "whole", "--data", "halves.npz", "--attacks", "pgd", "--out", "evaluation")
    try:
        process = runs.start(task, *command)
        deadline = time.monotonic() + 60
        while not (task / "evaluation/clean.npz").exists():
            assert time.monotonic() < deadline, "it does not get going"
            time.sleep(0.01)
        process.terminate()
        output, _ = process.communicate(timeout=30)
    finally:
        (task / "slow").unlink()
        (task / "within").unlink()
    assert process.returncode == 143, output
    runs.finish(runs.start(task, *command))


def at_a_terminal(task: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """`atlas ARGUMENTS` as the foreground process of a terminal, and that terminal."""
    master, tty = pty.openpty()
    command = [sys.executable, "-m", "atlas", *arguments]
    process = subprocess.Popen(
        command,
        cwd=task,
        stdin=tty,
        stdout=tty,
        stderr=tty,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(tty)
    return process, master


def test_a_run_saves_when_its_terminal_is_closed(task: Path) -> None:
    """The kernel sends SIGHUP, and all that is written to the terminal from then on fails."""
    process, terminal = at_a_terminal(task, "train", "task.toml", "--out", "closed", *SHORT)
    for there in ("closed/metrics.jsonl", "within"):
        deadline = time.monotonic() + 60
        while not (task / there).exists():
            os.read(terminal, 1 << 16)  # a terminal that nobody reads fills up and stops whoever writes to it
            assert time.monotonic() < deadline, "it never came there"
        (task / "slow").write_text("step")
    (task / "slow").unlink()
    (task / "within").unlink()
    os.close(terminal)
    assert process.wait(timeout=60) == 129
    runs.finish(runs.start(task, "train", "--resume", "closed"))
    assert runs.outcome(task / "closed") == runs.outcome(task / "whole")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="shows how far an import is on Linux only")
def test_ctrl_c_while_torch_is_imported_is_130_without_a_traceback(task: Path) -> None:
    command = [sys.executable, "-m", "atlas", "train", "task.toml", "--out", "early"]
    process = subprocess.Popen(command, cwd=task, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 60
    while "libtorch_cpu" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert time.monotonic() < deadline, "it is never imported"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, output) == (130, "")
    assert not (task / "early").exists()


def test_a_second_signal_ends_it_at_once_and_breaks_nothing(task: Path) -> None:
    process = within(task, "twice", "step")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None, "the first one waits for the batch"
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGTERM
    assert time.monotonic() - began < 3, "the batch takes longer"
    runs.finish(runs.start(task, "train", "--resume", "twice"))
    assert runs.outcome(task / "twice") == runs.outcome(task / "whole")


def test_a_clock_that_runs_backwards_and_files_from_the_future_change_nothing(task: Path) -> None:
    process = within(task, "clock", "step")
    process.terminate()
    assert process.wait(timeout=30) == 143
    for k, path in enumerate(sorted((task / "clock").rglob("*"))):
        os.utime(path, (4e9 - 1e7 * k, 4e9 - 1e7 * k))
    (task / "backwards").write_text("")
    try:
        runs.finish(runs.start(task, "train", "--resume", "clock"))
    finally:
        (task / "backwards").unlink()
    assert runs.outcome(task / "clock") == runs.outcome(task / "whole")


def test_a_folder_in_use_is_exit_7_with_process_and_host(task: Path) -> None:
    """Whether the second one is to resume or to begin."""
    first = within(task, "busy", "step")
    first.send_signal(signal.SIGSTOP)
    try:
        for command in (("train", "task.toml", "--out", "busy", *SHORT), ("train", "--resume", "busy")):
            second = runs.start(task, *command)
            output, _ = second.communicate(timeout=60)
            assert second.returncode == 7, output
            assert f"process {first.pid} on {socket.gethostname()}" in output
    finally:
        first.send_signal(signal.SIGCONT)
    runs.finish(first)
    assert runs.outcome(task / "busy") == runs.outcome(task / "whole")
