"""What all commands share: where they print, and how errors end them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from atlas.errors import AtlasError, DiskError

console = Console()


@contextmanager
def errors_to_exit_codes() -> Iterator[None]:
    try:
        yield
    except AtlasError as error:
        _end(error, error.exit_code)
    except OSError as error:
        _end(error, DiskError.exit_code)


def _end(error: Exception, code: int) -> None:
    said = Console(stderr=True)
    said.print(f"atlas: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)
