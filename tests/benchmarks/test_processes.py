"""Real processes: answers, errors and ends; a busy core; the load of everything else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.processes import LOOP, background_load, busy_process, worker_process
from benchmarks.timing import WorkerError

ROOT = Path(__file__).parents[2]
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def made(base: int) -> Callable[[str], object]:
    """Made in the worker process, where it reports on itself."""
    seen: list[str] = []

    def answer(what: str) -> object:
        seen.append(what)
        if what == "raise":
            raise ZeroDivisionError("no luck")
        if what == "die":
            os._exit(3)
        return {"pid": os.getpid(), "threads": torch.get_num_threads(), "base": base, "seen": list(seen)}

    return answer


def test_a_worker_process_keeps_its_state_and_is_replaced_when_it_dies() -> None:
    with worker_process(made, 7) as ask:
        first, second = ask("a"), ask("b")
        assert first["pid"] != os.getpid()
        assert second == {**first, "seen": ["a", "b"]}
        assert (first["base"], first["threads"]) == (7, torch.get_num_threads())
        with pytest.raises(WorkerError, match=r"^ZeroDivisionError: no luck$"):
            ask("raise")
        assert ask("c")["seen"] == ["a", "b", "raise", "c"]
        with pytest.raises(WorkerError, match="the process ended with code 3"):
            ask("die")
        again = ask("a")
        assert again["seen"] == ["a"]
    with pytest.raises(ProcessLookupError):
        os.kill(again["pid"], 0)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@needs_proc
def test_the_busy_process_works_and_waits_as_told() -> None:
    before = set(children())
    with busy_process() as set_busy:
        (pid,) = set(children()) - before
        spent = []
        for busy in (False, True, False):
            set_busy(busy)
            start, deadline = cpu_seconds(pid), time.monotonic() + 20
            while busy and cpu_seconds(pid) < start + 0.1 and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(0 if busy else 0.2)
            spent.append(cpu_seconds(pid) - start)
    assert spent[1] >= 0.1
    assert max(spent[0], spent[2]) <= 0.05
    assert pid not in children()


def children() -> list[int]:
    tasks = Path("/proc/self/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def test_the_busy_process_ends_when_its_pipe_closes() -> None:
    """As it does when the process that started it is killed."""
    command = [sys.executable, "-c", LOOP]
    done = subprocess.run(command, input=b"1", capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, b"1")


def test_the_background_load_is_what_no_process_of_ours_has_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds of four cores, 20 of them busy; each of two processes has used 6."""
    stat, tick = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    clock = {"perf_counter": 100.0, "process_time": 1.0}
    for name in clock:
        monkeypatch.setattr(f"time.{name}", lambda name=name: clock[name])
    stat.write_text(f"cpu  {5 * tick} 0 0 {900 * tick} {70 * tick} 0 0 0 0 0\ncpu0 1 1 1 1\n")
    load = background_load(lambda seconds: 2 * seconds, stat)
    unknown = background_load(lambda seconds: seconds, tmp_path / "none")
    stat.write_text(f"cpu  {18 * tick} 0 {4 * tick} {915 * tick} {75 * tick} {2 * tick} 0 {tick} 3 3\n")
    clock |= {"perf_counter": 110.0, "process_time": 7.0}
    assert load() == pytest.approx((20 - 2 * 6) / 40)
    assert unknown() is None


def test_silence_hides_prints_warnings_logs_and_what_c_writes() -> None:
    code = (
        "import logging, os, sys, warnings\nfrom benchmarks.processes import silence\nprint('before')\n"
        "with silence():\n    print('a'); print('b', file=sys.stderr); os.write(1, b'c'); os.write(2, b'd')\n"
        "    warnings.warn('e'); logging.warning('f')\nprint('after')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("before\nafter\n", "")
