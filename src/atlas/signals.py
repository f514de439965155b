"""Signals ask a run to save and exit; a process that was started by another shows that it is alive.

SIGINT (Ctrl-C) and SIGTERM: a second one ends the process at once. SIGHUP (the terminal was closed) and
SIGUSR1 (sent by cluster schedulers before the time limit) may be sent any number of times.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from atlas.errors import Interrupted, UsageError

INSISTENT = (signal.SIGINT, signal.SIGTERM)
"""A second one of these ends the process at once."""
SIGNALS = (*INSISTENT, *(getattr(signal, name) for name in ("SIGHUP", "SIGUSR1") if hasattr(signal, name)))
PARENT_POLL_SECONDS = 0.5
LAUNCHER, LIFE = "ATLAS_LAUNCHER", "ATLAS_LIFE"
"""Environment variables of a process that another started: that one's id, and a pipe for signs of life."""
WORKER_TIMEOUT = "ATLAS_WORKER_TIMEOUT"
DEFAULT_WORKER_TIMEOUT = 600.0


_ACTIVE: list[Requests] = []
"""Those that wait for signals, the outermost first."""


class Requests:
    """The first signal that was received, if any."""

    caught: int | None = None

    def check(self) -> None:
        """Raise Interrupted if a signal was received."""
        if self.caught is not None:
            raise Interrupted(self.caught)


@contextmanager
def caught_signals(before_death: Callable[[], None] | None = None) -> Iterator[Requests]:
    """Note signals instead of dying of them. Python allows handlers in the main thread only: none elsewhere.

    Nested blocks all see the signal: work that was nearly done when it was received finishes normally, and
    the caller, who may have more to do, has to know.

    Args:
        before_death: Called when a second SIGINT or SIGTERM is about to end the process.
    """
    requests = Requests()
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return

    def note(number: int, frame: FrameType | None) -> None:
        for waiting in _ACTIVE:
            waiting.caught = waiting.caught or number
        if number in INSISTENT:
            for each in INSISTENT:
                # The default action does not wait for a long call into torch to return.
                signal.signal(each, die if before_death else signal.SIG_DFL)

    def die(number: int, frame: FrameType | None) -> None:
        assert before_death is not None
        before_death()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    # nohup starts programs that ignore SIGHUP, and they must go on doing so.
    handled = [n for n in SIGNALS if n in INSISTENT or signal.getsignal(n) != signal.SIG_IGN]
    _ACTIVE.append(requests)
    before = {number: signal.signal(number, note) for number in handled}
    try:
        yield requests
    finally:
        _ACTIVE.remove(requests)
        for number, handler in before.items():
            signal.signal(number, handler)


def worker_timeout() -> float:
    """Seconds without a sign of life after which a worker is given up: $ATLAS_WORKER_TIMEOUT, else 600."""
    text = os.environ.get(WORKER_TIMEOUT) or str(DEFAULT_WORKER_TIMEOUT)
    with suppress(ValueError):
        if 1 <= (seconds := float(text)) < math.inf:
            return seconds
    raise UsageError(f"{WORKER_TIMEOUT} must be a number of seconds >= 1, got {text!r}")


def leave_with_parent() -> None:
    """Save and exit as soon as the process that started this one is gone; until then, show it signs of life.

    A launcher passes its id in LAUNCHER, because it may be gone before this process asks for it. All threads
    of a stopped process stand still, so it shows none.
    """
    parent = int(os.environ.get(LAUNCHER) or os.getppid())
    life = int(os.environ.pop(LIFE, -1))

    def watch() -> None:
        while os.getppid() == parent:
            if life >= 0:
                with suppress(OSError):  # nobody reads at the moment, and the pipe is full
                    os.write(life, b".")
            time.sleep(PARENT_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
