"""What all commands share: where they print, and how errors end them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from atlas.distributed.launch import rank
from atlas.errors import AtlasError, DiskError
from atlas.terminal import Terminal

console = Terminal()
Root = Annotated[
    Path | None, typer.Option(help="Where the data sets are; default: $ATLAS_DATA, else ~/.cache/atlas.")
]


def say(text: str) -> None:
    """A line: broken between words on a terminal, whole where a program may read it."""
    console.say(text)


@contextmanager
def errors_to_exit_codes() -> Iterator[None]:
    try:
        yield
    except AtlasError as error:
        _end(error, error.exit_code)
    except OSError as error:
        _end(error, DiskError.exit_code)


@contextmanager
def one_voice() -> Iterator[None]:
    """Errors reach all processes that work together; only the first prints them."""
    try:
        yield
    except AtlasError as error:
        if rank():
            raise typer.Exit(error.exit_code) from error
        raise


def _end(error: Exception, code: int) -> None:
    Terminal(stderr=True).say(f"atlas: {error}", style="red")
    sys.exit(code)
