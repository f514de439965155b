"""The settings of a process: what it waits by, how it keeps memory, and that the user's own stay."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOOK = """
import os, resource
from atlas.cli.process import prepare
prepare()
import torch
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(20_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(os.environ["OMP_WAIT_POLICY"], faults())
"""


def look(**environment: str) -> tuple[str, int]:
    """How threads wait, and the page faults of taking 80 MB ten times, in a process with this environment."""
    clean = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("OMP_WAIT", "MALLOC_", "GLIBC_", "LD_PRELOAD"))
    }
    command = [sys.executable, "-c", LOOK]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True)
    policy, faults = done.stdout.split()
    return policy, int(faults)


@pytest.fixture(scope="module")
def plain() -> int:
    """The faults of a process that the user has set up."""
    policy, faults = look(OMP_WAIT_POLICY="ACTIVE", MALLOC_MMAP_THRESHOLD_="1000000")
    assert policy == "ACTIVE"
    if faults < 1000:
        pytest.skip("here memory that is given back costs little: another C library, or huge pages")
    return faults


def test_memory_that_was_freed_is_taken_again_without_a_fault(plain: int) -> None:
    policy, faults = look()
    assert policy == "PASSIVE"
    assert faults < plain / 10


@pytest.mark.parametrize("theirs", [{"GLIBC_TUNABLES": "a.b=1"}, {"LD_PRELOAD": ""}])
def test_what_the_user_has_set_stays(theirs: dict[str, str], plain: int) -> None:
    assert look(**theirs)[1] > plain / 10


def test_a_narrow_encoding_ends_no_command() -> None:
    """Tables have daggers and Greek letters; a latin-1 terminal or pipe gets a question mark."""
    program = "from atlas.cli.process import prepare; prepare(); print('† 8/255')"
    narrow = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", program], env=narrow, capture_output=True, check=True)
    assert done.stdout == b"? 8/255\n"
