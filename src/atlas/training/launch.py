"""Several processes on one machine that train together, as torchrun would start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from atlas.errors import LostWorkerError
from atlas.signals import LAUNCHER, Requests, caught_signals

HERE = "127.0.0.1"
POLL_SECONDS = 0.1
GRACE_SECONDS = 20.0
"""How long the others may take to notice that one has ended, before they are killed."""


def launch(arguments: Sequence[str], of: int) -> int:
    """Run `atlas ARGUMENTS` as `of` ranks; the exit code for all.

    Here and not torchrun, because torchrun's own exit code is 1 whatever the ranks' are. The meeting point is
    in this process, so that no port has to be guessed and no rank's death takes it away. Ranks have sessions
    of their own: a Ctrl-C reaches this process alone, which passes it on once.
    """
    store = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // of)), **os.environ}
    environment |= {"MASTER_ADDR": HERE, "MASTER_PORT": str(store.port), "WORLD_SIZE": str(of)}
    environment |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_WORLD_SIZE": str(of)}
    environment |= {LAUNCHER: str(os.getpid())}
    with caught_signals() as requests:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "atlas", *arguments],
                env={**environment, "RANK": str(number), "LOCAL_RANK": str(number)},
                start_new_session=True,
            )
            for number in range(of)
        ]
        try:
            _wait(ranks, requests)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return _code(ranks, requests)


def _wait(ranks: Sequence[subprocess.Popen[bytes]], requests: Requests) -> None:
    """Until all have ended, or one has failed and the others have had time to notice."""
    passed_on, deadline = False, float("inf")
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        if requests.caught is not None and not passed_on:
            passed_on = True
            for rank in ranks:
                rank.send_signal(requests.caught)
        if any(rank.poll() for rank in ranks):
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        time.sleep(POLL_SECONDS)


def _code(ranks: Sequence[subprocess.Popen[bytes]], requests: Requests) -> int:
    """The exit code that stands for all: rank 0 has said why, unless it was killed."""
    codes = [rank.returncode for rank in ranks]
    if any(codes) and requests.caught is not None:
        return 128 + requests.caught
    for number, code in enumerate(codes):
        if code < 0:
            raise LostWorkerError(
                f"process {number} of {len(ranks)} was ended by {signal.Signals(-code).name}: resume to "
                "go on from the last saved state"
            )
    return next(filter(None, codes), 0)
