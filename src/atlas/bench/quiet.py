"""Other libraries print, warn, log and draw bars; a measurement wants none of it."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO

STDERR = 2


@contextmanager
def quiet() -> Iterator[None]:
    """Without anything of that, also on standard error, where bars go."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            redirect_stdout(StringIO()),
            redirect_stderr(StringIO()),
            warnings.catch_warnings(action="ignore"),
        ):
            yield
    finally:
        logging.disable(level)


@contextmanager
def unheard() -> Iterator[None]:
    """Without what C++ writes to standard error past Python, such as torch's profiler."""
    sys.stderr.flush()
    kept, nowhere = os.dup(STDERR), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, STDERR)
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)
        os.close(nowhere)
