"""A second process that keeps one core busy, or waits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# It works between two looks for a word, which it repeats once it does as told. It ends with the pipe, and so
# also where the process that started it is killed.
LOOP = """
import os, select
busy = False
while True:
    if select.select([0], [], [], 0 if busy else None)[0]:
        word = os.read(0, 1)
        if not word:
            break
        busy = word == b"1"
        os.write(1, word)
    for _ in range(10000):
        pass
"""


class Neighbour:
    """The process, and what it is told."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def work(self, busy: bool) -> None:
        """Let it work or wait from now on."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"1" if busy else b"0")
        self.process.stdin.flush()
        self.process.stdout.read(1)


@contextmanager
def neighbour() -> Iterator[Neighbour]:
    """A neighbour that waits; it is gone afterwards."""
    command = [sys.executable, "-S", "-c", LOOP]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Neighbour(process)
        finally:
            process.kill()
