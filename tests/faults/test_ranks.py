"""Processes that train together and are killed, signalled, frozen or fail: all end, none hangs.

Ranks are forked from a process that has imported everything (`tests.faults.ranks`); `atlas train --processes`
and torchrun start theirs themselves.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import atlas
from atlas.files import in_use, locked
from atlas.methods import Natural
from atlas.training import ProcessGroup, Schedule, Training, fit
from tests.faults import ranks, runs

SHORT = ("--set", "training.schedule.epochs=6", "--set", "training.batch_size=64")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small task and an undisturbed run of it by two processes, `whole`."""
    folder = tmp_path_factory.mktemp("ranks")
    runs.make_task(folder)
    assert ranks.ended(begin(folder, "whole")) == [0, 0], said(folder, "whole")
    return folder


def begin(task: Path, out: str, size: int = 2) -> list[BaseProcess]:
    """Ranks that train into this folder, or go on there."""
    arguments = ("task.toml", "--out", out, *SHORT)
    return ranks.start(size, ranks.command, task, task / f"{out}.txt", "train", *arguments)


def said(task: Path, out: str) -> str:
    return (task / f"{out}.txt").read_text()


def wait_for_metrics(run: Path, more_than: int, alive: Sequence[BaseProcess]) -> None:
    metrics, deadline = run / "metrics.jsonl", time.monotonic() + ranks.SECONDS
    while not (metrics.exists() and metrics.stat().st_size > more_than):
        assert time.monotonic() < deadline, "the run does not get going"
        assert all(process.exitcode is None for process in alive)
        time.sleep(0.01)


def epochs(run: Path) -> list[dict[str, float]]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "epoch"]


def test_two_processes_learn_what_one_does(task: Path) -> None:
    assert ranks.ended(begin(task, "alone", 1)) == [0]
    mine, theirs = epochs(task / "whole"), epochs(task / "alone")
    assert len(mine) == len(theirs) == 6
    assert max(r["val_robust"] for r in mine) > max(r["val_robust"] for r in theirs) - 0.1


def test_sigkill_of_a_rank_at_random_moments_ends_all_and_resumes_to_the_same_bits(task: Path) -> None:
    moments, metrics = random.Random(0), task / "killed/metrics.jsonl"
    for lost in (1, 0, 1):
        size = metrics.stat().st_size if metrics.exists() else 0
        team = begin(task, "killed")
        wait_for_metrics(task / "killed", size, team)
        time.sleep(moments.uniform(0, 0.2))
        team[lost].kill()
        codes = ranks.ended(team, seconds=20)
        assert codes[lost] == -signal.SIGKILL, "the run ended before it could be killed"
        assert codes[1 - lost] == 8, said(task, "killed")
    assert ranks.ended(begin(task, "killed")) == [0, 0], said(task, "killed")
    assert runs.outcome(task / "killed") == runs.outcome(task / "whole")


def test_whichever_of_four_is_killed_all_end(task: Path) -> None:
    team = begin(task, "four", 4)
    wait_for_metrics(task / "four", 0, team)
    team[2].kill()
    assert ranks.ended(team, seconds=20) == [8, 8, -signal.SIGKILL, 8], said(task, "four")


@pytest.fixture(scope="module")
def stopped(task: Path) -> Path:
    """A run that a signal to one of its two processes has stopped half-way."""
    team = begin(task, "stopped")
    wait_for_metrics(task / "stopped", 1000, team)
    assert team[1].pid is not None
    os.kill(team[1].pid, signal.SIGTERM)
    assert ranks.ended(team) == [143, 143], said(task, "stopped")
    assert said(task, "stopped").count("everything is saved") == 1, "the first speaks for all"
    return task / "stopped"


def test_a_signal_to_one_rank_saves_and_ends_all_after_the_same_step(task: Path, stopped: Path) -> None:
    shutil.copytree(stopped, task / "again")
    assert ranks.ended(begin(task, "again")) == [0, 0], said(task, "again")
    assert runs.outcome(task / "again") == runs.outcome(task / "whole")


@pytest.mark.parametrize("size", [1, 4])
def test_a_state_by_two_processes_continues_with_another_number(task: Path, stopped: Path, size: int) -> None:
    shutil.copytree(stopped, task / f"by-{size}")
    before = epochs(stopped)
    assert ranks.ended(begin(task, f"by-{size}", size)) == [0] * size, said(task, f"by-{size}")
    mine, theirs = epochs(task / f"by-{size}"), epochs(task / "whole")
    assert len(mine) == len(theirs)
    assert mine[: len(before)] == theirs[: len(before)]
    assert mine[-1]["loss"] == pytest.approx(theirs[-1]["loss"], abs=0.2)


def test_a_folder_in_use_ends_all_ranks_with_exit_7(task: Path) -> None:
    with locked(task / "busy"):
        assert ranks.ended(begin(task, "busy")) == [7, 7]
    assert f"process {os.getpid()}" in said(task, "busy")


# --- errors of one rank, and silence ---

DATA = (torch.rand(64, 1, 4, 4), torch.arange(64) % 2)
TRAINING = Training(batch_size=16, schedule=Schedule(kind="constant", epochs=2, ramp_epochs=0))


class Breaks(nn.Module):
    """On rank 1 alone, NaN in the third training step or in validation, or no answer any more."""

    def __init__(self, rank: int, how: str) -> None:
        super().__init__()
        self.linear, self.rank, self.how, self.steps = nn.Linear(16, 2), rank, how, 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += self.training
        third = self.training and self.steps == 3
        validation = self.steps > 0 and not (self.training or torch.is_grad_enabled())
        logits: Tensor = self.linear(x.flatten(1))
        if self.rank == 1 and self.how == "freeze" and third:
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.rank == 1 and {"training": third, "validation": validation}.get(self.how):
            return logits * torch.nan
        return logits


def train_until_it_breaks(team: ProcessGroup, how: str, folder: Path) -> None:
    model = Breaks(team.rank, how)
    try:
        fit(
            model,
            DATA,
            Natural(),
            threat=atlas.Linf(0.1),
            training=TRAINING,
            folder=folder,
            progress=False,
            group=team,
        )
    finally:
        finite = all(p.isfinite().all() for p in model.parameters())
        (folder / f"{team.rank}.txt").write_text(f"{model.steps} {finite}")


def test_what_is_not_finite_on_one_rank_ends_all_before_any_update(tmp_path: Path) -> None:
    team = ranks.start(2, ranks.with_ranks, train_until_it_breaks, ranks.SECONDS, "training", tmp_path)
    assert ranks.ended(team) == [5, 5]
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)] == ["3 True", "3 True"]
    report = json.loads((tmp_path / "not-finite.json").read_text())
    assert report["step"] == 2
    assert len(report["examples"]) == 16, "the whole batch"


def test_an_error_of_one_rank_is_that_of_all(tmp_path: Path) -> None:
    team = ranks.start(2, ranks.with_ranks, train_until_it_breaks, ranks.SECONDS, "validation", tmp_path)
    assert ranks.ended(team) == [5, 5]
    assert not (tmp_path / "best.safetensors").exists()


def test_a_rank_that_does_not_answer_is_given_up_after_a_while(tmp_path: Path) -> None:
    team = ranks.start(2, ranks.with_ranks, train_until_it_breaks, 4.0, "freeze", tmp_path)
    team[0].join(30)
    assert team[0].exitcode == 8
    ranks.ended(team, seconds=0)


# --- who starts ranks ---


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that it has started, in the order of their numbers."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [line.split() for line in listing.stdout.splitlines()]
    return sorted(int(pid) for pid, parent in pairs if int(parent) == process.pid)


def test_atlas_train_processes_starts_watches_and_stops_its_ranks(task: Path) -> None:
    run = task / "launched"
    process = runs.start(task, "train", "task.toml", "--out", run.name, *SHORT, "--processes", "2")
    runs.wait_for_metrics(run, process, 0)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=ranks.SECONDS)
    assert process.returncode == 130, output
    assert output.count("everything is saved") == 1
    process = runs.start(task, "train", "--resume", run.name, "--processes", "2")
    runs.wait_for_metrics(run, process, (run / "metrics.jsonl").stat().st_size)
    os.kill(ranks_of(process)[0], signal.SIGKILL)
    began = time.monotonic()
    output, _ = process.communicate(timeout=ranks.SECONDS)
    assert process.returncode == 8, output
    assert "process 0 of 2 was ended by SIGKILL" in output
    assert time.monotonic() - began < 20
    assert ranks.ended(begin(task, run.name)) == [0, 0]
    assert runs.outcome(run) == runs.outcome(task / "whole")


@pytest.mark.parametrize(("interrupted", "code"), [(True, 130), (False, 8)], ids=["ctrl-c", "timeout"])
def test_a_stopped_rank_cannot_keep_the_others_or_the_folder(
    task: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool, code: int
) -> None:
    """Of two, the one that holds the lock of the folder: after a Ctrl-C, or after the timeout without one."""
    monkeypatch.setenv("ATLAS_WORKER_TIMEOUT", "6")
    run = task / f"frozen-{code}"
    process = runs.start(task, "train", "task.toml", "--out", run.name, *SHORT, "--processes", "2")
    runs.wait_for_metrics(run, process, 0)
    team = ranks_of(process)
    os.kill(team[0], signal.SIGSTOP)
    if interrupted:
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=ranks.SECONDS)
    assert process.returncode == code, output
    assert "everything is saved" not in output
    assert not any(Path(f"/proc/{rank}").exists() for rank in team)
    assert not in_use(run)
    assert ranks.ended(begin(task, run.name)) == [0, 0], said(task, run.name)
    assert runs.outcome(run) == runs.outcome(task / "whole")


THREADS_AFTERWARDS = """
import os
from pathlib import Path
from atlas.training import connected
with connected() as ranks:
    import torch._dynamo  # as the optimisers do, in the middle of it
    ranks.wait()
print(*(Path("/proc/self/task", thread, "comm").read_text() for thread in os.listdir("/proc/self/task")))
"""


def test_nothing_of_a_team_is_left_when_it_has_parted() -> None:
    """A thread that waits for messages while Python ends may abort a process whose run is done."""
    team = [
        subprocess.Popen(
            [sys.executable, "-c", THREADS_AFTERWARDS],
            env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for environment in ranks.environments(2)
    ]
    said = [process.communicate(timeout=ranks.SECONDS)[0] for process in team]
    assert [process.returncode for process in team] == [0, 0]
    assert all("python" in words and "gloo" not in words for words in said), said


def test_torchrun_restarts_the_run_and_it_ends_with_the_same_bits(task: Path) -> None:
    run = task / "restarted"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["--max-restarts", "1", "-m", "atlas", "train", "task.toml", "--out", run.name, *SHORT]
    process = subprocess.Popen(
        [*torchrun, *command],
        cwd=task,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    runs.wait_for_metrics(run, process, 500)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    runs.finish(process)
    assert runs.outcome(run) == runs.outcome(task / "whole")
