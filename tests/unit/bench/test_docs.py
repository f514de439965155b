"""docs/speed.md says what is declared and what was measured."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from atlas import bench
from atlas.bench.report import BEGIN, END

ROOT = Path(__file__).parents[3]
PAGE, DATA = ROOT / "docs" / "speed.md", ROOT / "results" / "bench-step.json"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="an installed source tree without its docs")


def at(cell: str, n: int) -> int:
    """The value of a cell such as 2n + 3."""
    found = re.fullmatch(r"(?:(\d*)n)?(?:(?: \+ )?(\d+))?", cell)
    assert found, cell
    slope = int(found[1] or 1) if "n" in cell else 0
    return slope * n + int(found[2] or 0)


def test_the_table_of_passes_is_what_is_declared() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().partition("## Measured")[0].splitlines()
        if line.startswith("|")
    ]
    names = [field.name.replace("_", " ") for field in fields(bench.Passes)]
    wanted = [name if name != "jacobian" else "Jacobian product" for name in names]
    assert rows[0] == ["method", *wanted, "bound"]
    assert {row[0] for row in rows[2:]} == set(bench.EQUATIONS)
    for name, *cells in rows[2:]:
        for n in (1, 10):
            label = name if name in ("natural", "jac") else f"{name}-{n}"
            passes = bench.case(label).passes
            assert passes is not None
            declared = [getattr(passes, field.name) for field in fields(passes)]
            assert [at(cell, n) for cell in cells] == [*declared, passes.cost], label


def test_the_measured_tables_are_those_of_the_stored_times() -> None:
    block = PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()
    assert block == bench.markdown(json.loads(DATA.read_text()))


@pytest.mark.parametrize("part", ["half robust", "large", "circles", "robust", "stages"])
def test_the_tables_of_attacks_are_those_of_the_stored_times(part: str) -> None:
    begin, end = bench.markers("attack", part)
    block = PAGE.read_text().partition(begin)[2].partition(end)[0].strip()
    stored = ROOT / "results" / f"bench-attack-{part.replace(' ', '-')}.json"
    assert block == bench.attack_markdown(json.loads(stored.read_text()))
