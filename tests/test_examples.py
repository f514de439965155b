"""Every example runs as it stands, and is short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "compare_models": "worst case",
    "custom_attack": "walk",
    "custom_method": "worst case",
    "evaluate_model": "see report.html",
    "finetune": "after:",
    "lightning_style": "worst case",
    "plain_loop": "worst case",
    "tour": "zero-gradients",
}
"""What the output of each has in it."""


def test_every_example_has_a_test() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example(name: str, tmp_path: Path) -> None:
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) <= 60
    ended = subprocess.run(
        [sys.executable, path],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert SAYS[name] in ended.stdout
