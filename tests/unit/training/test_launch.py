"""Worker processes that hang, fail or are signalled: the launcher always ends, and leaves none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from atlas.distributed import launch
from atlas.distributed.launch import Workers
from atlas.errors import Interrupted, LostWorkerError, UsageError
from atlas.signals import LIFE, Requests, worker_timeout

WORKER = """
import subprocess, sys, time
from atlas.signals import caught_signals, leave_with_parent

leave_with_parent()
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
with caught_signals() as requests:
    for _ in range(600):
        time.sleep(0.05)
        if requests.caught:
            child.kill()
            sys.exit(128 + requests.caught)
"""


class Team:
    """Two workers that work for half a minute and save when they are asked to stop."""

    def __init__(self, folder: Path, codes: tuple[str, str] = (WORKER, WORKER)) -> None:
        self.workers = Workers(2)
        self.requests = Requests()
        for number, code in enumerate(codes):
            script = folder / f"{number}.py"
            script.write_text(f"import sys\nsys.stdout = open('{folder}/{number}', 'w')\n{code}")
            self.workers.start([sys.executable, str(script)], {})
        self.pids = [worker.process.pid for worker in self.workers.workers]
        self.folder = folder

    def once_started(self, act: Callable[[], None]) -> None:
        """Do something when both are at work, while this process waits for them."""

        def when() -> None:
            wait_until(lambda: all(self.said(number) for number in range(2)))
            time.sleep(0.3)  # and have given a sign of life
            act()

        threading.Thread(target=when).start()

    def said(self, number: int) -> str:
        path = self.folder / str(number)
        return path.read_text() if path.exists() else ""

    def interrupt(self) -> None:
        self.requests.caught = signal.SIGINT

    def wait(self, *, independent: bool = True) -> float:
        """How many seconds it took."""
        began = time.monotonic()
        with self.workers:
            self.workers.wait(self.requests, independent=independent)
        return time.monotonic() - began

    def gone(self) -> bool:
        """Whether nothing is left of the workers and of what they have started."""
        return not any(map(alive, [*self.pids, *(int(self.said(number).split()[0]) for number in range(2))]))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def alive(process: int) -> bool:
    state = subprocess.run(["ps", "-o", "state=", "-p", str(process)], capture_output=True, text=True).stdout
    return state.strip()[:1] not in ("", "Z")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE_SECONDS", 2.0)


@pytest.mark.parametrize("stopped", [0, 1])
def test_ctrl_c_ends_a_worker_that_is_stopped_and_its_children(tmp_path: Path, stopped: int) -> None:
    team = Team(tmp_path)

    def act() -> None:
        os.kill(team.pids[stopped], signal.SIGSTOP)
        team.interrupt()

    team.once_started(act)
    assert team.wait() < 20
    with pytest.raises(
        Interrupted, match=f"process {stopped} of 2 gave no sign of life for 2 seconds"
    ) as error:
        team.workers.exit_code(team.requests)
    assert error.value.exit_code == 130
    assert "saved, resume" not in str(error.value)
    wait_until(team.gone)


def test_a_worker_that_stays_stopped_is_given_up_after_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATLAS_WORKER_TIMEOUT", "3")
    team = Team(tmp_path)
    team.once_started(lambda: os.kill(team.pids[1], signal.SIGSTOP))
    assert 3 < team.wait() < 20
    with pytest.raises(LostWorkerError, match="process 1 of 2 gave no sign of life for 3 seconds"):
        team.workers.exit_code(team.requests)
    wait_until(team.gone)


def test_a_worker_that_is_stopped_for_a_moment_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATLAS_WORKER_TIMEOUT", "4")
    team = Team(tmp_path)

    def act() -> None:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(team.pids[0], number)
            time.sleep(2)
        team.interrupt()

    team.once_started(act)
    team.wait()
    team.workers.exit_code(team.requests)
    assert not any(worker.killed for worker in team.workers.workers)


DEAF = """
import signal, time
from atlas.signals import leave_with_parent

leave_with_parent()
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(1, flush=True)
time.sleep(60)
"""


def test_a_worker_that_lives_but_does_not_end_is_killed_after_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATLAS_WORKER_TIMEOUT", "3")
    team = Team(tmp_path, (WORKER, DEAF))
    team.once_started(team.interrupt)
    assert team.wait() < 20
    with pytest.raises(Interrupted, match="process 1 of 2 did not end when it was asked to"):
        team.workers.exit_code(team.requests)


FAILS = """
print(1, flush=True)
sys.exit(6)
"""


@pytest.mark.parametrize("independent", [True, False])
def test_one_that_fails_ends_the_others(tmp_path: Path, independent: bool) -> None:
    """Those that work on their own are asked to save; those that work together are given time to notice."""
    team = Team(tmp_path, (WORKER, FAILS))
    assert team.wait(independent=independent) < 20
    assert team.workers.exit_code(team.requests) == 6
    assert [worker.killed for worker in team.workers.workers] == [not independent, False]


def test_the_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_timeout() == 600
    for text in ("0", "-1", "nan", "inf", "ten"):
        monkeypatch.setenv("ATLAS_WORKER_TIMEOUT", text)
        with pytest.raises(UsageError, match=f"ATLAS_WORKER_TIMEOUT must be .* >= 1, got '{text}'"):
            worker_timeout()


def test_workers_do_not_hand_their_pipe_on(tmp_path: Path) -> None:
    """A process that a worker starts would otherwise write to a number that is another file there."""
    code = f"import os\n{WORKER}".replace("child.pid", f"'{LIFE}' in os.environ")
    team = Team(tmp_path, (code, code))
    team.once_started(team.interrupt)
    team.wait()
    assert [team.said(number).strip() for number in range(2)] == ["False", "False"]
