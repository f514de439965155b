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
WRITERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "peers": bench.match_markdown,
    "growth": growth_markdown,
    "time": race_markdown,
}

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="an installed source tree without its docs")


@pytest.mark.parametrize("command", WRITERS)
def test_the_tables_are_those_of_the_stored_times(command: str) -> None:
    begin, end = bench.markers(command)
    assert PAGE.read_text().count(begin) == PAGE.read_text().count(end) == 1
    block = PAGE.read_text().partition(begin)[2].partition(end)[0].strip()
    stored = ROOT / "results" / f"bench-{command}.json"
    assert block == (WRITERS[command](json.loads(stored.read_text())) if stored.exists() else "")
