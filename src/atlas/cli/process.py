"""The settings of the process, made before torch is imported; what the user has set stays."""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""As in glibc's malloc.h."""
NEVER = -1
THEIRS = (
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""Who sets one of these has chosen how memory is handed out."""


def prepare() -> None:
    # Threads that spin while they wait were seen 24 times slower beside one busy neighbour. OpenMP reads
    # this when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if not any(name in os.environ for name in THEIRS):
        keep_memory()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a question mark for a character that its encoding lacks
            stream.reconfigure(errors="replace")


@contextmanager
def ctrl_c(leave: Callable[[int], object]) -> Iterator[None]:
    """Ctrl-C leaves with exit code 130 and without a traceback, until `caught_signals` does more."""
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # by a shell, for jobs in the background
    if ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: leave(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def keep_memory() -> bool:
    """Let freed memory stay with the process; whether the C library can.

    glibc gives every large block back to the system at once. A training step frees and takes the same large
    blocks again and again, and the system clears each page anew: see docs/results/records/speed.md.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, NEVER))
