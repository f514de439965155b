"""Processes beside the one that measures: other libraries, a busy core, and the rest of the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import WorkerError

EXIT_SECONDS = 5.0
Maker = Callable[..., Callable[..., Any]]


@contextmanager
def worker_process(make: Maker, *settings: Any) -> Iterator[Callable[..., Any]]:
    """Call `make(*settings)` in a new process; calls of what it returns run there and wait for the answer.

    `atlas` changes how its process allocates memory (`atlas.cli.process`). A program that uses another
    library has no such settings, so other libraries are measured in a process of their own, with as many
    threads as this one. It ends with the context, or with this process. If it dies, the next call starts
    another. A call raises `WorkerError` if it raised there or the process ended.
    """
    spawn, running = get_context("spawn"), list[tuple[Any, Connection]]()

    def call(*arguments: Any) -> Any:
        if not running:
            pipe, there = spawn.Pipe()
            told = (there, torch.get_num_threads(), make, settings)
            running.append((spawn.Process(target=_serve, args=told, daemon=True), pipe))
            running[0][0].start()
            there.close()
        try:
            running[0][1].send(arguments)
            answer, error = running[0][1].recv()
        except (EOFError, OSError) as ended:
            raise WorkerError(f"the process ended with code {end()}") from ended
        if error is not None:
            raise WorkerError(error)
        return answer

    def end() -> int | None:
        process, pipe = running.pop()
        pipe.close()
        process.join(EXIT_SECONDS)
        process.kill()
        process.join()
        return process.exitcode  # type: ignore[no-any-return]

    try:
        yield call
    finally:
        if running:
            end()


def _serve(pipe: Connection, threads: int, make: Maker, settings: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends this process
    torch.set_num_threads(threads)
    made: Any = None
    while True:
        try:
            arguments = pipe.recv()
        except EOFError:
            return
        try:
            made = made or make(*settings)
            pipe.send((made(*arguments), None))
        except Exception as error:  # sent back, whatever a library raises
            pipe.send((None, f"{type(error).__name__}: {error}"))


@contextmanager
def silence() -> Iterator[None]:
    """Suppress what libraries print, warn, log and draw, also what C++ writes."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept, nowhere = {number: os.dup(number) for number in (1, 2)}, os.open(os.devnull, os.O_WRONLY)
    try:
        for number in kept:
            os.dup2(nowhere, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in kept.items():
            os.dup2(original, number)
            os.close(original)
        os.close(nowhere)


# It works between two looks at its input and echoes each command once it has followed it. It ends when the
# pipe closes, so also when the process that started it is killed.
LOOP = """
import os, select
busy = False
while True:
    if select.select([0], [], [], 0 if busy else None)[0]:
        word = os.read(0, 1)
        if not word:
            break
        busy = word == b"1"
        os.write(1, word)
    for _ in range(10000):
        pass
"""


@contextmanager
def busy_process() -> Iterator[Callable[[bool], None]]:
    """A process that waits; called with True, it keeps one core busy until it is called with False."""
    command = [sys.executable, "-S", "-c", LOOP]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:

        def set_busy(busy: bool) -> None:
            process.stdin.write(b"1" if busy else b"0")  # type: ignore[union-attr]
            process.stdout.read(1)  # type: ignore[union-attr]

        try:
            yield set_busy
        finally:
            process.kill()


STAT = Path("/proc/stat")
IDLE = (3, 4)
"""Columns of its first line that are not work: idle, and waiting for a disk."""


def background_load(total: Callable[[float], float], stat: Path = STAT) -> Callable[[], float | None]:
    """Start to measure; the returned function gives the share of all cores' time that was not ours.

    `total` sums a number over all processes that are measured. The share is None without a /proc/stat.
    """

    def now() -> tuple[float, float, float]:
        """Seconds by the clock, of work of all cores, and of this process."""
        line = stat.read_text().splitlines()[0].split()[1:9] if stat.exists() else []
        busy = sum(int(ticks) for column, ticks in enumerate(line) if column not in IDLE)
        return time.perf_counter(), busy / os.sysconf("SC_CLK_TCK"), time.process_time()

    began = now()

    def share() -> float | None:
        clock, busy, mine = (end - start for end, start in zip(now(), began, strict=True))
        left = (busy - total(mine)) / (clock * (os.cpu_count() or 1))
        return max(0.0, left) if stat.exists() else None

    return share
