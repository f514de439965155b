"""Every promise of docs/explanation/reliability.md names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_test_that_is_named_exists() -> None:
    named = NAMED.findall((ROOT / "docs/explanation/reliability.md").read_text())
    assert len(named) > 35
    there = {
        (path, node.name)
        for path in {path for path, _ in named}
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert sorted(set(named) - there) == []


def test_every_promise_names_one() -> None:
    text, *counted = (ROOT / "docs/explanation/reliability.md").read_text().split("## The soak")
    assert len(counted) == 1
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.endswith(("| held by |", "| test |"))]
    assert len(promises) > 35
    assert [row for row in promises if not NAMED.search(row)] == []
