"""The order of the methods under AutoAttack, over all tables of results/; the README has it.

python -m scripts.order_results
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atlas.evaluation import Report
from atlas.evaluation.compare import compared
from atlas.evaluation.evaluation_folder import load_report
from benchmarks.tables import grid, markers_of, put_between_markers

ROOT = Path(__file__).parent.parent
CNN = "table1-mnist-cpu-cnn-trained-bfloat16-all-attacked-bfloat16"
TABLES = {
    "MNIST, `cnn-small`": (["table1-mnist-cpu"], 1),
    "MNIST, `cnn`": ([CNN, f"{CNN}-more"], 1),
    "MNIST, `cnn-small`, tuned, 10 epochs": (["table1-mnist-cpu-tuned-ten"], 1),
    "MNIST, `cnn-small`, tuned, 30 epochs": (["table1-mnist-cpu-tuned"], 1),
    "CIFAR-10, small": (["table1-cifar10-cpu"], 1),
    "CIFAR-100, small": (["table1-cifar100-cpu"], 1),
    "MNIST, `cnn-small`, twenty-step": (["table1-mnist-cpu"], 20),
    "MNIST, `cnn-small`, twenty-step, tuned, 30 epochs": (["table1-mnist-cpu-tuned-twenty"], 20),
}
"""What each line is of: the folders whose tables have its rows, and the steps of their adversaries."""
QUICK = "MNIST, `cnn-small`, quick settings, 15 epochs"
METHODS, OTHERS = ("adv", "trades", "atlas"), ("adv", "trades")
ATTACK = "AutoAttack"
LEAST_P = 1e-6
"""Smaller ones are not told apart: of one training each they would promise too much."""


def table() -> str:
    head = [f"accuracy in % under {ATTACK}", "n", "ADV", "TRADES", "ATLAS", "ATLAS - ADV", "ATLAS - TRADES"]
    quick = {method: load_report(ROOT / "results/evaluation" / f"quick-{method}-1") for method in METHODS}
    lines = [[name, *_of_tables(list(map(_read, folders)), k)] for name, (folders, k) in TABLES.items()]
    return grid(head, [[QUICK, *_of_evaluations(quick)], *lines])


def _read(folder: str) -> dict[str, Any]:
    (path,) = (ROOT / "results" / folder).glob("table1-*.json")
    return dict(json.loads(path.read_text()))


def _of_tables(parts: list[dict[str, Any]], steps: int) -> list[str]:
    rows = {row["key"]: row for part in parts for row in part["rows"] if _has(row)}
    rows = {method: rows[f"{method}-{steps}"] for method in METHODS}
    cells = [row["cells"][ATTACK] for row in rows.values()]
    tests = {(line[1], line[2]): line for part in parts for line in _paired(part, steps) if line[0] == ATTACK}
    # One seed of each: a paired test is of one.
    ((n, _),) = {(seed["n"], seed["seed"]) for cell in cells for seed in cell["seeds"]}
    accuracies = [_accuracy(cell["ours"], cell["interval"]) for cell in cells]
    return [str(n), *accuracies, *(_tested(tests.get((rows[other]["label"], "0"))) for other in OTHERS)]


def _has(row: dict[str, Any]) -> bool:
    return row["cells"].get(ATTACK, {}).get("ours") is not None


def _paired(part: dict[str, Any], steps: int) -> list[list[Any]]:
    name = "paired" if steps == 1 else "paired-multi-step"
    return list(part["tables"].get(name, {}).get("rows", []))


def _tested(line: list[Any] | None) -> str:
    """None was made where the rows' verdicts are not in one table, or where nobody asked then."""
    return "no paired test" if line is None else _difference(line[6]["value"], line[7]["value"])


def _of_evaluations(reports: Mapping[str, Report]) -> list[str]:
    """Of AutoAttack alone, whose worst case is what it leaves."""
    (n,) = {report.n for report in reports.values()}
    scores = [report.worst for report in reports.values()]
    accuracies = [_accuracy(100 * score.rate, [100 * end for end in score.interval]) for score in scores]
    pairs = [compared(reports["atlas"], reports[other])["worst case"][2] for other in OTHERS]
    return [str(n), *accuracies, *(_difference(100 * pair.difference, pair.p_value) for pair in pairs)]


def _accuracy(percent: float, interval: Sequence[float]) -> str:
    return f"{percent:.2f} [{interval[0]:.1f}, {interval[1]:.1f}]"


def _difference(points: float, p: float) -> str:
    return f"{points:+.2f}, " + (f"p < {LEAST_P:.0e}" if p < LEAST_P else f"p = {p:.2g}")


if __name__ == "__main__":
    put_between_markers(ROOT / "README.md", table(), *markers_of("order"))
