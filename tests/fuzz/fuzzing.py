"""Inputs made of good ones by a few changes, and a runner that allows each of them little time and memory."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

T = TypeVar("T")
Changes = list[tuple[str, float, bytes]]

FEW = 400
"""Inputs in the suite that is always run."""
MANY = 100_000
CHUNK = 5_000
"""Inputs at a time: hypothesis remembers each of them to the end."""
SECONDS = 20.0
"""Of computing for one input; a hundred times what any should take."""
MEMORY, GROWTH = 2 << 30, 512 << 20
"""Bytes that all together may ask for, and that may be there at once, beyond what was there before."""

each_size = pytest.mark.parametrize(
    "count", [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
)

NUMBERS = [
    n.to_bytes(width, order)
    for n in (0, 1, 255, 2**31, 2**32 - 1)
    for width in (4, 8)
    for order in ("little", "big")
]
WORDS = [
    b"1e999",
    b"-1",
    b"nan",
    b"=",
    b"[",
    b"{",
    b'"',
    b"'",
    b"\n",
    b"../",
    b"\x00",
    b"true",
    b"99999999999999999999",
]
pieces = st.one_of(st.binary(max_size=6), st.sampled_from([*NUMBERS, *WORDS]))
changes: st.SearchStrategy[Changes] = st.lists(
    st.tuples(
        st.sampled_from(["overwrite", "overwrite", "insert", "delete", "cut", "repeat", "flip"]),
        st.floats(0, 1),
        pieces,
    ),
    max_size=5,
)


def changed(data: bytes, how: Changes) -> bytes:
    """`data` with these changes, one after the other."""
    for kind, place, piece in how:
        at = int(place * len(data))
        match kind:
            case "overwrite":
                data = data[:at] + piece + data[at + len(piece) :]
            case "insert":
                data = data[:at] + piece + data[at:]
            case "delete":
                data = data[:at] + data[at + len(piece) + 1 :]
            case "cut":
                data = data[:at]
            case "repeat":
                data = data[:at] + data[at : at + 40] * (1 + len(piece)) + data[at:]
            case _:
                bit = 1 << (piece[0] % 8 if piece else 0)
                data = data[:at] + bytes(byte ^ bit for byte in data[at : at + 1]) + data[at + 1 :]
    return data


def fuzz(inputs: st.SearchStrategy[T], check: Callable[[T], object], count: int) -> None:
    """`check` so many of the inputs: it must end soon, in bounded memory, and raise nothing."""
    done = 0
    with little_memory():
        for number in range(-(-count // CHUNK)):

            @seed(number)
            @settings(
                max_examples=min(CHUNK, count),
                deadline=None,
                database=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            )
            @given(inputs)
            def each(value: T) -> None:
                nonlocal done
                done += 1
                with _little_time():
                    check(value)

            each()
    assert done >= count
    print(f"inputs fuzzed: {done}")


class TooLong(BaseException):
    """Not to be caught by who is tested."""


@contextmanager
def _little_time() -> Iterator[None]:
    """Of the processor, so that a busy machine is no fault."""

    def over(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"more than {SECONDS:.0f} seconds for one input")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def little_memory() -> Iterator[None]:
    """No more than a program needs that reads small files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    peak = _peak()
    resource.setrlimit(resource.RLIMIT_AS, (_asked_for() + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert _peak() - peak < GROWTH, f"{(_peak() - peak) >> 20} MB were taken"


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _asked_for() -> int:
    """Bytes of address space, by Linux; elsewhere as much as may be."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 40
