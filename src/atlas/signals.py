"""SIGINT and SIGTERM ask a run to save and leave; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from atlas.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Requests:
    """The signal that has come in, if any."""

    caught: int | None = None

    def check(self) -> None:
        """Raise Interrupted where a signal has come in."""
        if self.caught is not None:
            raise Interrupted(self.caught)


@contextmanager
def caught_signals() -> Iterator[Requests]:
    """Note signals instead of dying of them. Outside the main thread Python allows no handlers: none then."""
    requests = Requests()
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return

    def note(number: int, frame: FrameType | None) -> None:
        requests.caught = number
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
