"""The order of the one-step methods under AutoAttack, over all tables of results/; the README has it.

python scripts/order_results.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atlas.bench.report import grid, markers_of, put_between_markers

ROOT = Path(__file__).parent.parent
CNN = "table1-mnist-cpu-cnn-trained-bfloat16-all-attacked-bfloat16"
TABLES = {
    "MNIST, `cnn-small`": ["table1-mnist-cpu"],
    "MNIST, `cnn`": [CNN, f"{CNN}-more"],
    "MNIST, `cnn-small`, tuned, 10 epochs": ["table1-mnist-cpu-tuned-ten"],
    "MNIST, `cnn-small`, tuned, 30 epochs": ["table1-mnist-cpu-tuned"],
    "CIFAR-10, small": ["table1-cifar10-cpu"],
    "CIFAR-100, small": ["table1-cifar100-cpu"],
}
"""What each line is of: the folders whose tables have its rows."""
ROWS = {"adv-1": "one-step ADV", "trades-1": "one-step TRADES", "atlas-1": "one-step ATLAS"}
ATTACK = "AutoAttack"
LEAST_P = 1e-6
"""Smaller ones are not told apart: of one training each they would promise too much."""


def table() -> str:
    head = [f"accuracy in % under {ATTACK}", "n", "ADV", "TRADES", "ATLAS", "ATLAS - ADV", "ATLAS - TRADES"]
    return grid(head, [_line(name, list(map(_read, folders))) for name, folders in TABLES.items()])


def _read(folder: str) -> dict[str, Any]:
    (path,) = (ROOT / "results" / folder).glob("table1-*.json")
    return dict(json.loads(path.read_text()))


def _line(name: str, parts: list[dict[str, Any]]) -> list[str]:
    rows = {row["key"]: row["cells"][ATTACK] for part in parts for row in part["rows"] if _has(row)}
    pairs = {line[1]: line for part in parts for line in _paired(part) if line[0] == ATTACK}
    (n,) = {seed["n"] for key in ROWS for seed in rows[key]["seeds"]}
    tests = [_difference(pairs.get(ROWS[key])) for key in ("adv-1", "trades-1")]
    return [name, str(n), *(_accuracy(rows[key]) for key in ROWS), *tests]


def _has(row: dict[str, Any]) -> bool:
    return row["cells"].get(ATTACK, {}).get("ours") is not None


def _paired(part: dict[str, Any]) -> list[list[Any]]:
    return list(part["tables"].get("paired", {}).get("rows", []))


def _accuracy(cell: dict[str, Any]) -> str:
    return f"{cell['ours']:.1f} [{cell['interval'][0]:.1f}, {cell['interval'][1]:.1f}]"


def _difference(line: list[Any] | None) -> str:
    """Of the paired test; none was made where the rows' verdicts are not in one table."""
    if line is None:
        return "no paired test"
    p = f"p < {LEAST_P:.0e}" if line[7]["value"] < LEAST_P else f"p = {line[7]['text']}"
    return f"{line[6]['value']:+.1f}, {p}"


if __name__ == "__main__":
    put_between_markers(ROOT / "README.md", table(), *markers_of("order"))
