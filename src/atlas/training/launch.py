"""Several processes on one machine that do one job together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from atlas.errors import Interrupted, LostWorkerError
from atlas.signals import DEFAULT_WORKER_TIMEOUT, LAUNCHER, LIFE, Requests, caught_signals, worker_timeout

ATLAS = (sys.executable, "-m", "atlas")
HERE = "127.0.0.1"
POLL_SECONDS = 0.1
GRACE_SECONDS = 20.0
"""How long a worker may be silent once all are to end, or the others may take to notice a lost rank."""
KILLED_SECONDS = 10.0
"""How long a killed process may take to end: one that waits for a disk that does not answer may never."""


def launch(arguments: Sequence[str], of: int, module: str = "atlas") -> int:
    """Run `python -m MODULE ARGUMENTS` as `of` ranks; the exit code for all.

    This is not torchrun, because torchrun's own exit code is 1 whatever the ranks' are. The rendezvous store
    is in this process, so that no port has to be guessed and the death of a rank does not take it away.
    """
    store = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    common = {"MASTER_ADDR": HERE, "MASTER_PORT": str(store.port), "WORLD_SIZE": str(of)}
    common |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_WORLD_SIZE": str(of)}
    command = [sys.executable, "-m", module, *arguments]
    with Workers(of) as workers, caught_signals(workers.kill) as requests:
        for number in range(of):
            workers.start(command, {**common, "RANK": str(number), "LOCAL_RANK": str(number)})
        workers.wait(requests, independent=False)
    workers.check(requests)
    return _code(workers, requests)


def _code(workers: Workers, requests: Requests) -> int:
    """The exit code that stands for all: rank 0 has said why, unless it was killed."""
    codes = workers.codes
    if any(codes.values()) and requests.caught is not None:
        return 128 + requests.caught
    for number, code in codes.items():
        if code < 0:
            raise LostWorkerError(
                f"process {number} of {workers.of} was ended by {signal.Signals(-code).name}: resume to "
                "continue from the last saved state"
            )
    return next(filter(None, codes.values()), 0)


@dataclass(eq=False)
class Worker:
    """A process, with the reading end of the pipe for its signs of life."""

    process: subprocess.Popen[bytes]
    life: int
    heard: bool = False
    silent: float = 0.0
    """Seconds since its last sign of life, or since its start, in which the launcher itself was running."""

    def listen(self, elapsed: float) -> None:
        try:
            self.heard = bool(os.read(self.life, 1 << 16)) or self.heard
            self.silent = 0.0
        except BlockingIOError:  # nothing was written
            self.silent += elapsed


class Workers:
    """Starts processes, passes signals on to them, and ends them all when they do not end by themselves.

    Each has a session of its own: a Ctrl-C at the terminal reaches this process alone, which passes it on
    once; a worker that received it twice would not wait to save. A worker that is stopped (SIGSTOP) gives no
    sign of life. After `worker_timeout()` of silence, or `GRACE_SECONDS` of it once all were asked to end,
    all are killed, with the processes that they have started.
    """

    def __init__(self, of: int) -> None:
        self.of, self.timeout = of, worker_timeout()
        self.workers: list[Worker] = []
        self.failed: int | None = None
        """The number of the first that failed by itself."""
        self.given_up = ""
        """Why those that were left were killed, if they were."""
        self.killed: set[int] = set()

    @property
    def codes(self) -> dict[int, int]:
        """The exit code of each that ended by itself; -N for signal N."""
        found = {number: worker.process.poll() for number, worker in enumerate(self.workers)}
        return {n: code for n, code in found.items() if code is not None and n not in self.killed}

    @property
    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.process.poll() is None]

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], errors: IO[bytes] | None = None
    ) -> None:
        """Start another one. Threads are shared out among all, unless the user has set their number."""
        threads = str(max(1, (os.cpu_count() or 1) // self.of))
        life, write = os.pipe()
        os.set_blocking(life, False)
        os.set_blocking(write, False)
        own = {LAUNCHER: str(os.getpid()), LIFE: str(write)}
        try:
            process = subprocess.Popen(
                command,
                env={"OMP_NUM_THREADS": threads, **os.environ, **environment, **own},
                stderr=errors,
                start_new_session=True,
                pass_fds=[write],
            )
        except OSError:
            os.close(life)
            raise
        finally:
            os.close(write)
        self.workers.append(Worker(process, life))

    def wait(
        self, requests: Requests, *, independent: bool, each_poll: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until all have ended. A signal is passed on.

        If one fails, the others are asked to save and exit if they are `independent`; if not, they notice.
        """
        passed_on = asked = False
        deadline, before = float("inf"), time.monotonic()
        while running := self.running:
            each_poll()
            now = time.monotonic()
            for worker in running:
                # A second at most: whoever stops the launcher, or the machine, may stop the workers too.
                worker.listen(min(now - before, 1.0))
            before = now
            self._note_failure()
            if requests.caught is not None and not passed_on:
                passed_on = asked = True
                deadline = now + self.timeout
                self._ask(requests.caught)
            elif self.failed is not None and not asked:
                asked = True
                deadline = now + (self.timeout if independent else GRACE_SECONDS)
                if independent:
                    self._ask(signal.SIGTERM)
            self.given_up = self._overdue(running, asked, late=now > deadline)
            if self.given_up:
                self.kill()
                return
            time.sleep(POLL_SECONDS)
        self._note_failure()

    def _note_failure(self) -> None:
        if self.failed is None:
            self.failed = next((n for n, worker in enumerate(self.workers) if worker.process.poll()), None)

    def _overdue(self, running: Sequence[Worker], asked: bool, late: bool) -> str:
        """Why there is no point in waiting any longer, if so."""
        for worker in running:
            limit = self.timeout if worker.heard else max(self.timeout, DEFAULT_WORKER_TIMEOUT)
            if worker.silent > (min(limit, GRACE_SECONDS) if asked else limit):
                return f"{self._name(worker)} gave no sign of life for {worker.silent:.0f} seconds"
        return f"{self._name(running[0])} did not end when it was asked to" if late else ""

    def _name(self, worker: Worker) -> str:
        return f"process {self.workers.index(worker)} of {self.of}"

    def check(self, requests: Requests) -> None:
        """Raise an error if those that were left had to be killed, unless another had failed before."""
        if self.given_up and (self.failed is None or requests.caught is not None):
            how = f"{self.given_up}, so all were killed: resume to continue from the last saved state"
            raise LostWorkerError(how) if requests.caught is None else Interrupted(requests.caught, how)

    def kill(self) -> None:
        """End all that are left, with the processes that they have started."""
        for worker in self.running:
            self.killed.add(self.workers.index(worker))
            with suppress(ProcessLookupError, PermissionError):  # the second: already dead, on macOS
                os.killpg(worker.process.pid, signal.SIGKILL)
        for worker in self.workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(KILLED_SECONDS)

    def _ask(self, number: int) -> None:
        for worker in self.workers:
            worker.process.send_signal(number)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for worker in self.workers:
            os.close(worker.life)
