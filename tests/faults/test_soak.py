"""The soak, for as long as a suite can wait; scripts/soak.py runs it for hours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "soak.py"


@pytest.mark.timeout(1200)
def test_nothing_is_lost() -> None:
    command = [sys.executable, str(SCRIPT), "--minutes", "5"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = {name: int(n) for name, n in re.findall(r"^([a-z ]+): (\d+)", ended.stdout, re.MULTILINE)}
    assert counts["bits differing"] == 0
    assert counts["faults injected"] >= 20
    assert counts["runs resumed"] >= 10
    assert counts["rounds compared"] >= 1


def test_a_bit_that_differs_is_counted() -> None:
    code = "from soak import differing as d; print(d(b'ab', b'ab'), d(b'a', b'c'), d(b'a', b''))"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=SCRIPT.parent, capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["0", "1", "8"]
