"""Real processes that train together, forked from one that has imported everything: starts are cheap.

Each has the environment that torchrun would give it; the meeting point is in the test's own process.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from atlas.cli.console import errors_to_exit_codes
from atlas.training import connected

SECONDS = 60.0
"""No test waits longer."""

PRELOAD = ["atlas.cli.app", "tests.faults.ranks", "tests.faults.runs", "torch._dynamo"]
"""What a fork need not import again; torch's optimisers import the last, for a second, when one is made."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOAD)
_stores: list[TCPStore] = []  # alive as long as the processes that meet there


def start(size: int, work: Callable[..., None], *arguments: Any) -> list[BaseProcess]:
    """`work(*arguments)` in each of `size` processes."""
    team = [
        _context.Process(target=_enter, args=(environment, work, arguments), daemon=True)
        for environment in environments(size)
    ]
    for process in team:
        process.start()
    return team


def environments(size: int) -> list[dict[str, str]]:
    """What torchrun would tell each of `size` processes that meet here."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _stores.append(store)
    common = {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def _enter(environment: dict[str, str], work: Callable[..., None], arguments: Sequence[Any]) -> None:
    torch.set_num_threads(1)
    os.environ |= environment
    work(*arguments)


def with_ranks(work: Callable[..., None], patience: float, *arguments: Any) -> None:
    """`work(ranks, *arguments)`, its errors as exit codes."""
    with errors_to_exit_codes(), connected(timedelta(seconds=patience)) as ranks:
        work(ranks, *arguments)


def command(folder: Path, output: Path, *arguments: str, main: Callable[[], None] | None = None) -> None:
    """`atlas ARGUMENTS`, or another `main`, in this folder, without the seconds of starting Python."""
    if main is None:
        from atlas.cli import main

    with output.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.argv = ["atlas", *arguments]
    main()


def ended(team: Sequence[BaseProcess], seconds: float = SECONDS) -> list[int | None]:
    """The exit codes, once all have ended; whoever has not by then is killed, and its code is None."""
    deadline = time.monotonic() + seconds
    for process in team:
        process.join(max(0.0, deadline - time.monotonic()))
    codes = [process.exitcode for process in team]
    for process in team:
        process.kill()
        process.join()
    return codes


def run(size: int, work: Callable[..., None], *arguments: Any, patience: float = SECONDS) -> None:
    """`work(ranks, *arguments)` in `size` processes, which all have to end well."""
    codes = ended(start(size, with_ranks, work, patience, *arguments))
    assert codes == [0] * size, codes
