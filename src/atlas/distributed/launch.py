"""Several processes on one machine that do one job together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

import torch
import torch.distributed as dist
import torch.distributed.nn  # its defaults hold the group of this moment, threads and all: let it be none
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from atlas.distributed.process_group import ProcessGroup, reached
from atlas.errors import AtlasError, Interrupted, LostWorkerError, UsageError
from atlas.signals import (
    DEFAULT_WORKER_TIMEOUT,
    LAUNCHER,
    LIFE,
    Requests,
    caught_signals,
    leave_with_parent,
    worker_timeout,
)

HERE = "127.0.0.1"
POLL_SECONDS = 0.1
GRACE_SECONDS = 20.0
"""How long a worker may be silent once all are to end, or the others may take to notice a lost rank."""
KILLED_SECONDS = 10.0
"""How long a killed process may take to end: one that waits for a disk that does not answer may never."""


def launch(arguments: Sequence[str], of: int, module: str = "atlas", *, independent: bool = False) -> int:
    """Run `python -m MODULE ARGUMENTS` as `of` ranks, to train or evaluate together; the exit code for all.

    This is not torchrun, because torchrun's own exit code is 1 whatever the ranks' are. The rendezvous store
    is in this process, so that no port has to be guessed and the death of a rank does not take it away. If a
    rank fails, `independent` ones are asked to save and exit; the others notice by themselves.
    """
    store = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    common = {"MASTER_ADDR": HERE, "MASTER_PORT": str(store.port), "WORLD_SIZE": str(of)}
    common |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_WORLD_SIZE": str(of)}
    command = [sys.executable, "-m", module, *arguments]
    with Workers(of) as workers, caught_signals(workers.kill) as requests:
        for number in range(of):
            workers.start(command, {**common, "RANK": str(number), "LOCAL_RANK": str(number)})
        workers.wait(requests, independent=independent)
    return workers.exit_code(requests)


@dataclass(eq=False)
class Worker:
    """A process, with the reading end of the pipe for its signs of life."""

    name: str
    process: subprocess.Popen[bytes]
    life: int
    heard: bool = False
    killed: bool = False
    silent: float = 0.0
    """Seconds since its last sign of life, or since its start, in which the launcher itself was running."""

    @property
    def code(self) -> int | None:
        """The exit code if it ended by itself; -N for signal N."""
        return None if self.killed else self.process.poll()

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
        self.failed: Worker | None = None  # the first that failed by itself
        self.given_up = ""  # why those that were left were killed
        self.asked = False  # all, to save and exit

    @property
    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.process.poll() is None]

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start another one. Threads are shared out among all, unless the user has set their number."""
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.of))}
        life, write = os.pipe()
        os.set_blocking(life, False)
        os.set_blocking(write, False)
        own = {LAUNCHER: str(os.getpid()), LIFE: str(write)}
        everything = {**threads, **os.environ, **environment, **own}
        process = subprocess.Popen(command, env=everything, start_new_session=True, pass_fds=[write])
        os.close(write)
        self.workers.append(Worker(f"process {len(self.workers)} of {self.of}", process, life))

    def wait(self, requests: Requests, *, independent: bool) -> None:
        """Wait until all have ended. A signal is passed on.

        If one fails, the others are asked to save and exit if they are `independent`; if not, they notice.
        """
        passed_on = ending = False
        deadline, before = float("inf"), time.monotonic()
        while True:
            now, running = time.monotonic(), self.running
            self.failed = self.failed or next((worker for worker in self.workers if worker.code), None)
            if not running:
                return
            for worker in running:
                # A second at most: whoever stops the launcher, or the machine, may stop the workers too.
                worker.listen(min(now - before, 1.0))
            before = now
            if requests.caught is not None and not passed_on:
                passed_on = ending = True
                deadline = now + self.timeout
                self._ask(requests.caught)
            elif self.failed and not ending:
                ending = True
                deadline = now + (self.timeout if independent else GRACE_SECONDS)
                if independent:
                    self._ask(signal.SIGTERM)
            self.given_up = self._overdue(running, ending, late=now > deadline)
            if self.given_up:
                self.kill()
                return
            time.sleep(POLL_SECONDS)

    def _ask(self, number: int) -> None:
        self.asked = True
        for worker in self.workers:
            worker.process.send_signal(number)

    def _overdue(self, running: Sequence[Worker], ending: bool, late: bool) -> str:
        """Why there is no point in waiting any longer, if so."""
        for worker in running:
            limit = self.timeout if worker.heard else max(self.timeout, DEFAULT_WORKER_TIMEOUT)
            if worker.silent > (min(limit, GRACE_SECONDS) if ending else limit):
                return f"{worker.name} gave no sign of life for {worker.silent:.0f} seconds"
        return f"{running[0].name} did not end when it was asked to" if late else ""

    def exit_code(self, requests: Requests) -> int:
        """The exit code that stands for all. Rank 0 has said why; an error says who was killed."""
        if self.given_up and (self.failed is None or requests.caught is not None):
            how = f"{self.given_up}, so all were killed: resume to continue from the last saved state"
            raise LostWorkerError(how) if requests.caught is None else Interrupted(requests.caught, how)
        if requests.caught is not None and any(worker.code for worker in self.workers):
            return 128 + requests.caught
        for worker in self.workers:
            code = worker.code or 0
            if code < 0 and not (code == -signal.SIGTERM and self.asked):
                raise LostWorkerError(
                    f"{worker.name} was ended by {signal.Signals(-code).name}: resume to continue from the "
                    "last saved state"
                )
        return 0 if self.failed is None else self.failed.code or LostWorkerError.exit_code

    def kill(self) -> None:
        """End all that are left, with the processes that they have started."""
        for worker in self.running:
            worker.killed = True
            with suppress(ProcessLookupError, PermissionError):  # the second: already dead, on macOS
                os.killpg(worker.process.pid, signal.SIGKILL)
        for worker in self.workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(KILLED_SECONDS)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        for worker in self.workers:
            os.close(worker.life)


GREETING_SECONDS = 0.05
LAST_WORDS = "last-words"


def started() -> bool:
    """Whether torchrun or `launch` has started this process, with others or not."""
    return "RANK" in os.environ


def rank() -> int:
    """This process's number among those that were started together."""
    return int(os.environ.get("RANK", 0))


def size() -> int:
    """How many were started together."""
    return int(os.environ.get("WORLD_SIZE", 1))


def checked_device(name: torch.device | str | None) -> torch.device:
    """The device of this name; by default a GPU if there is one. One that is not there is a usage error."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {str(name)!r} cannot be used here: {error}; try cpu") from error
    return device


def local_device(name: str | None) -> str | None:
    """The device of this name; where it names all GPUs or none, each process of a machine takes one."""
    if size() == 1 or not torch.cuda.is_available() or name not in (None, "cuda"):
        return name
    return f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"


@contextmanager
def connected(patience: timedelta | None = None) -> Iterator[ProcessGroup]:
    """The processes that were started together. An error that ends one of them ends all, and is told to all.

    `patience` is how long to wait for a rank that is silent, by default `worker_timeout()`; one that is gone
    is noticed at once.
    """
    if size() == 1:
        yield ProcessGroup()
        return
    patience = patience or timedelta(seconds=worker_timeout())
    leave_with_parent()
    start = max(patience, timedelta(seconds=DEFAULT_WORKER_TIMEOUT))  # imports alone may take a while
    with reached():
        shared, number, of = next(rendezvous("env://", timeout=start))
        store = _ours(shared, number, of, time.monotonic() + start.total_seconds())
        # Which of the two carries a tensor is decided by where the tensor is.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=number, world_size=of, timeout=patience)
    try:
        yield ProcessGroup(number, of)
    except (Interrupted, LostWorkerError) as ended:  # because of another, which may have said why
        raise _heard(store) or ended from ended
    except Exception as error:
        code = error.exit_code if isinstance(error, AtlasError) else LostWorkerError.exit_code
        with suppress(RuntimeError):
            store.compare_set(LAST_WORDS, "", json.dumps([code, f"process {number} of {of}: {error}"]))
        raise
    finally:
        dist.destroy_process_group()


def _ours(shared: Store, number: int, of: int, deadline: float) -> Store:
    """A part of the store that only the processes of this start use.

    torchrun's store outlives them, with the addresses of those before a restart in it, which new ones would
    call in vain. So each but the first greets with a word of its own, and the first, which is alive, answers
    that very word with the name of the part.
    """
    word = uuid4().hex
    if number:
        shared.set(f"atlas/greeting/{number}", word)
        store = PrefixStore(shared.get(f"atlas/answer/{word}").decode(), shared)
        store.set(f"here/{number}", "")
        return store
    store = PrefixStore(word, shared)
    while missing := [n for n in range(1, of) if not store.check([f"here/{n}"])]:
        for n in missing:
            if shared.check([f"atlas/greeting/{n}"]):
                shared.set(f"atlas/answer/{shared.get(f'atlas/greeting/{n}').decode()}", word)
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out waiting for ranks {missing} of {of}")
        time.sleep(GREETING_SECONDS)
    return store


def _heard(store: Store) -> AtlasError | None:
    """The error of which a lost rank has died, if it had time to say."""
    with suppress(RuntimeError):  # the store may be gone too
        if store.check([LAST_WORDS]):
            code, words = json.loads(store.get(LAST_WORDS))
            error = AtlasError(words)
            error.exit_code = code
            return error
    return None
