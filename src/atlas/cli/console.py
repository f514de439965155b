"""What all commands share: options, where they print, and how errors end them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from typer import Exit, Option

from atlas.distributed.launch import rank
from atlas.errors import AtlasError, DiskError
from atlas.terminal import Terminal

console = Terminal()
Root = Annotated[
    Path | None, Option(help="Where the data sets are; default: $ATLAS_DATA, else ~/.cache/atlas.")
]
Device = Annotated[str | None, Option(help="cpu, cuda, cuda:1 ...; default: a GPU if there is one.")]
Settings = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Change a setting, as method.alpha=1e-4. Repeatable."),
]


def say(text: str) -> None:
    """A line: broken between words on a terminal, whole where a program may read it."""
    console.say(text)


@contextmanager
def errors_to_exit_codes() -> Iterator[None]:
    try:
        yield
    except (AtlasError, OSError) as error:
        Terminal(stderr=True).say(f"atlas: {error}", style="red")
        sys.exit(error.exit_code if isinstance(error, AtlasError) else DiskError.exit_code)


@contextmanager
def one_voice() -> Iterator[None]:
    """Errors reach all processes that work together; only the first prints them."""
    try:
        yield
    except AtlasError as error:
        if rank():
            raise Exit(error.exit_code) from error
        raise
