"""SIGINT and SIGTERM ask a run to save and leave; a second one ends it at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from atlas.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PARENT_POLL_SECONDS = 0.5
LAUNCHER = "ATLAS_LAUNCHER"


_ACTIVE: list[Requests] = []
"""Those that wait for signals, the outermost first."""


class Requests:
    """The signal that has come in, if any."""

    caught: int | None = None

    def check(self) -> None:
        """Raise Interrupted where a signal has come in."""
        if self.caught is not None:
            raise Interrupted(self.caught)


@contextmanager
def caught_signals() -> Iterator[Requests]:
    """Note signals instead of dying of them. Outside the main thread Python allows no handlers: none then.

    One within another tells that too: work that was as good as done when a signal came in ends well, and who
    has more of it to do has to know.
    """
    requests = Requests()
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return

    def note(number: int, frame: FrameType | None) -> None:
        for waiting in _ACTIVE:
            waiting.caught = number
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    _ACTIVE.append(requests)
    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield requests
    finally:
        _ACTIVE.remove(requests)
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_with_parent() -> None:
    """Ask this process to save and leave as soon as the one that started it is gone, killed for example.

    Who starts others tells them its number (LAUNCHER): it may be gone before they come to ask for it.
    """
    parent = int(os.environ.get(LAUNCHER) or os.getppid())

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
