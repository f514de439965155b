"""What goes to a terminal: text as itself, whatever the names in it are made of."""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment


def one_line(text: str) -> str:
    """Without control characters, which move a terminal's cursor, break a row or turn the direction."""
    return "".join(" " if unicodedata.category(char)[0] == "C" else char for char in text)


def duration(seconds: float) -> str:
    """A time to read: 90 s, 5 min, 2.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class Terminal(Console):
    """A console that reads no markup in what it is given, and lets no control character out but its own.

    A run's folder, an attack's label or an error can hold any text: "[/]" would end a program that takes it
    for markup, and an escape sequence would take over the terminal.
    """

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:
            if not self._is_gone(error):
                raise
            self.on_broken_pipe()

    def _is_gone(self, error: OSError) -> bool:
        """Whether the error says that the terminal was closed; on a disk it is a fault of the disk."""
        return error.errno == errno.EIO and stat.S_ISCHR(os.fstat(self.file.fileno()).st_mode)

    def on_broken_pipe(self) -> None:
        """Go on in silence where rich would end the process.

        A run must not end unsaved because its terminal was closed, or because a Ctrl-C also ended the `tee`
        that it wrote to.
        """
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())  # what is left in its buffer would fail again at the exit
        os.close(nowhere)

    def say(self, text: str, style: str | None = None) -> None:
        """A line of text: broken between words on a terminal, whole where a program may read it."""
        self.print(text, style=style, soft_wrap=not self.is_terminal)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(one_line, segment.text.split("\n"))), segment.style)


def share_bars(console: Terminal) -> Progress:
    """Bars of how much of a piece of work is done and the time left, which go when it is over."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=console.quiet or not console.is_terminal,
        transient=True,
    )
