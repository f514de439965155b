"""Something that works in a process of its own, as in a program that has nothing to do with ours.

`atlas` sets how its process is given memory (`atlas.cli.process`), which a program that uses another library
does not have. What is not ours is therefore measured in a new process, which does one thing at a time.
"""

from __future__ import annotations

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
    gone afterwards; it also goes where ours is killed.
    """
    spawn = get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(there, torch.get_num_threads(), make, settings), daemon=True)
    process.start()
    there.close()

    def call(*question: Any) -> Any:
        try:
            here.send(question)
            answer, error = here.recv()
        except (EOFError, OSError) as ended:
            raise ApartError(f"its process has ended, with code {process.exitcode}") from ended
        if error is not None:
            raise ApartError(error)
        return answer

    try:
        yield call
    finally:
        here.close()
        process.join(FAREWELL_SECONDS)
        process.kill()
        process.join()


def _serve(questions: Connection, threads: int, make: Callable[..., Any], settings: tuple[Any, ...]) -> None:
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
