"""What can go wrong, each with the exit code of the command line.

An error says what was expected, what was found, and what to do.
"""

from __future__ import annotations

import signal
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class AtlasError(Exception):
    """Base of every error that ATLAS raises on purpose."""

    exit_code = 1


class UsageError(AtlasError, ValueError):
    """A wrong name, value or option."""

    exit_code = 2


class DataError(AtlasError):
    """A data file or data set that is missing, altered or not what it should be."""

    exit_code = 3


class CheckpointError(AtlasError):
    """Weights or a saved state that cannot be trusted or do not fit."""

    exit_code = 4


class DamagedError(CheckpointError):
    """A file that is not as it was written."""


class NumericError(AtlasError):
    """A loss, gradient or logit that is not finite."""

    exit_code = 5


class DiskError(AtlasError):
    """A write that failed; what was there before is still there."""

    exit_code = 6


class LockError(AtlasError):
    """Another process works in this folder."""

    exit_code = 7


class LostWorkerError(AtlasError):
    """One of several processes is gone."""

    exit_code = 8


class OutOfMemoryError(AtlasError):
    """The machine or the GPU has no memory left; what was saved before is intact."""

    exit_code = 10


class ModelError(AtlasError):
    """The user's model raised an error in the middle of the work; what was saved before is intact."""

    exit_code = 11


class Interrupted(AtlasError):
    """A signal asked the work to stop; what was done so far is saved, unless `note` says otherwise."""

    def __init__(self, number: int, note: str = "everything is saved, resume to continue") -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; {note}")
        self.exit_code = 128 + number


def unknown(kind: str, name: object, choices: Iterable[str]) -> UsageError:
    """The error for a name that is not among the choices, with the nearest one."""
    known = sorted(choices)
    lower = {choice.lower(): choice for choice in known}
    near = get_close_matches(str(name).lower(), lower, n=1)
    hint = f" (did you mean {lower[near[0]]!r}?)" if near else ""
    return UsageError(f"unknown {kind} {name!r}{hint}; choose from: {', '.join(known)}")


def choose(kind: str, name: str, table: Mapping[str, T]) -> T:
    """The entry of `table` called `name`."""
    if name not in table:
        raise unknown(kind, name, table)
    return table[name]


_NO_MEMORY = ("out of memory", "can't allocate memory", "Cannot allocate memory", "ALLOC_FAILED", "bad_alloc")
"""What torch and the system say; on a CPU torch raises a plain RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, of torch or of Python, says that memory has run out."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY)


def is_ctrl_c(error: BaseException) -> bool:
    """Whether an error is how the command line leaves at a Ctrl-C, and not a model's own `sys.exit`."""
    return isinstance(error, SystemExit) and error.code == 128 + signal.SIGINT


@contextmanager
def user_code_errors(what: str, kind: type[AtlasError], remedy: str = "") -> Iterator[None]:
    """Turn whatever the user's own code raises in this block, but our own errors, into this kind."""
    try:
        yield
    except AtlasError:
        raise
    except (Exception, SystemExit) as error:
        if is_ctrl_c(error):
            raise
        raise kind(f"{what} failed with {type(error).__name__}: {error}{remedy}") from error


@contextmanager
def model_errors(where: str, remedy: str) -> Iterator[None]:
    """Turn whatever a model raises in this block into an `OutOfMemoryError` or a `ModelError`.

    Args:
        where: The place, such as "in epoch 2, step 31".
        remedy: What to do when memory has run out, as a sentence.
    """
    try:
        yield
    except AtlasError:
        raise
    except (Exception, SystemExit) as error:  # sys.exit would end the process as if there were a result
        if is_ctrl_c(error):
            raise
        first = str(error).partition("\n")[0]
        if is_out_of_memory(error):
            raise OutOfMemoryError(f"out of memory {where}: {first}. {remedy}") from error
        what, why = f"raised {type(error).__name__}", f": {first}"
        if isinstance(error, SystemExit):
            what, why = f"called sys.exit({error.code!r})", ""
        raise ModelError(
            f"the model {what} {where}{why} ({_line_of(error)}). Fix the model and start again: what was "
            "saved before is intact"
        ) from error


def _line_of(error: BaseException) -> str:
    """The last line of the user's own code, or of any where there is none, that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_installed(frame.filename)]
    frame = (own or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}"


def is_installed(file: str) -> bool:
    """Whether a file comes with Python, with a package, or with ATLAS."""
    path = Path(file)
    ours, standard = Path(__file__).parent, sysconfig.get_path("stdlib")
    packaged = bool({"site-packages", "dist-packages"} & set(path.parts))
    return packaged or path.is_relative_to(ours) or path.is_relative_to(standard)
