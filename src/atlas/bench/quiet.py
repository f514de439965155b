"""Other libraries print, warn, log and draw bars; a measurement wants none of it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO


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
