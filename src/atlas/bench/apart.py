"""Something that works in a process of its own, as in a program that has nothing to do with ours.

`atlas` sets how its process is given memory (`atlas.cli.process`), which a program that uses another library
does not have. What is not ours is therefore measured in a new process, which does one thing at a time.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

FAREWELL_SECONDS = 5.0


class ApartError(Exception):
    """What was raised there, in words."""


@contextmanager
def apart(make: Callable[..., Callable[..., Any]], *settings: Any) -> Iterator[Callable[..., Any]]:
    """What `make(*settings)` gives, made in a new process; a call waits for the answer.

    Both must be importable there, settings and answers plain. The process has as many threads as ours, and is
    gone afterwards; it also goes where ours is killed. Where it dies, the next call starts another.
    """
    other: _Other | None = None

    def call(*question: Any) -> Any:
        nonlocal other
        other = other or _Other(make, settings)
        try:
            answer, error = other.ask(question)
        except (EOFError, OSError) as ended:
            code, other = other.end(), None
            raise ApartError(f"its process has ended, with code {code}") from ended
        if error is not None:
            raise ApartError(error)
        return answer

    try:
        yield call
    finally:
        if other:
            other.end()


class _Other:
    def __init__(self, make: Callable[..., Any], settings: tuple[Any, ...]) -> None:
        spawn = get_context("spawn")
        self.questions, there = spawn.Pipe()
        told = (there, torch.get_num_threads(), make, settings)
        self.process = spawn.Process(target=_serve, args=told, daemon=True)
        self.process.start()
        there.close()

    def ask(self, question: tuple[Any, ...]) -> Any:
        self.questions.send(question)
        return self.questions.recv()

    def end(self) -> int | None:
        """Its exit code."""
        self.questions.close()
        self.process.join(FAREWELL_SECONDS)
        self.process.kill()
        self.process.join()
        return self.process.exitcode


def _serve(questions: Connection, threads: int, make: Callable[..., Any], settings: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends ours, which ends this one
    torch.set_num_threads(threads)
    made: Any = None
    while True:
        try:
            question = questions.recv()
        except EOFError:
            return
        try:
            made = made or make(*settings)
            questions.send((made(*question), None))
        except Exception as error:  # whatever it is, the one who asked wants to know
            questions.send((None, f"{type(error).__name__}: {error}"))
