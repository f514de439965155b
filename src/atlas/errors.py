"""What can go wrong, each with the exit code of the command line.

An error says what it got, what it wanted and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
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


class Interrupted(AtlasError):
    """A signal asked the work to stop; what was done so far is saved."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped by signal {signal}; everything is saved, resume to go on")
        self.exit_code = 128 + signal


def unknown(kind: str, name: object, choices: Iterable[str]) -> UsageError:
    """The error for a name that is not among the choices, with the nearest one."""
    known = sorted(choices)
    near = get_close_matches(str(name), known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return UsageError(f"unknown {kind} {name!r}{hint}; choose from: {', '.join(known)}")


def choose(kind: str, name: str, table: Mapping[str, T]) -> T:
    """The entry of `table` called `name`."""
    if name not in table:
        raise unknown(kind, name, table)
    return table[name]
