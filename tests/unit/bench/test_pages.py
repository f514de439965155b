"""docs/speed.md shows the measurements that are stored, and none where none is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from atlas import bench
from atlas.bench.growth_report import growth_markdown
from atlas.bench.race_report import race_markdown

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "speed.md"
WRITERS: dict[tuple[str, str], Callable[[Mapping[str, Any]], str]] = {
    ("step", "wrn-28-8"): bench.markdown,
    ("peers", "cnn"): bench.match_markdown,
    ("peers", "wrn-28-8"): bench.match_markdown,
    ("growth", ""): growth_markdown,
    ("time", ""): race_markdown,
}

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="an installed source tree without its docs")


@pytest.mark.parametrize(("command", "part"), WRITERS)
def test_the_tables_are_those_of_the_stored_times(command: str, part: str) -> None:
    begin, end = bench.markers(command, part)
    assert PAGE.read_text().count(begin) == PAGE.read_text().count(end) == 1
    block = PAGE.read_text().partition(begin)[2].partition(end)[0].strip()
    stored = ROOT / "results" / f"{f'bench-{command} {part}'.strip().replace(' ', '-')}.json"
    assert block == (WRITERS[command, part](json.loads(stored.read_text())) if stored.exists() else "")
