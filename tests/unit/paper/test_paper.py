"""The paper's numbers in our data file are those of the paper's source, where that is at hand."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atlas_paper import paper

PLACES = {
    "Table 1": ("table:mainTable", ("mnist", "cifar10", "cifar100")),
    "Table 2 (App. C)": ("table:ablation", ("cifar10", "cifar100")),
    "App. D.1": ("table:add_loss", ("cifar10", "cifar100")),
}
EXTRA = {"cifar10": "table:AA-cifar10", "cifar100": "table:AA-cifar100"}
WIDE = ("clean", "black box", "PGD-20", "PGD-1000", "Un-T", "Multi-T", "s/batch")
HEADS = {
    "table:mainTable": WIDE,
    "table:add_loss": WIDE,
    "table:ablation": ("clean", "Un-T", "Multi-T", "s/batch"),
    "table:AA-cifar10": ("RayS", "AutoAttack"),
    "table:AA-cifar100": ("RayS", "AutoAttack"),
}
# Where the text says each of [text]; a group for each number.
SAID = {
    "multi_t_gap_below": r"strongest Multi-T attack is below \$([\d.]+)\\%",
    "speed_up": r"a roughly (\d+)\$\\%\$ speed-up",
    "step_sizes": r"possible values: \$([\d.]+)\\eps[^$]*\$[^$]*\$([\d.]+)\\eps\w*\$ and \$([\d.]+)\\eps",
    "plateaus": r"plateau epochs to be (\d+) \(plt2\).*?plateau epochs to be (\d+) \(plt4\)",
    "stable_alpha": r"Upper row plots are for the ATLAS model with \$\\alpha=([\d.]+)\$",
    "stable_beta": r"Upper row plots are for the ATLAS model with \S+ and \$\\beta=([\d.]+)\$",
    "collapse_alpha": r"bottom row plots are for the ATLAS model with \$\\alpha=([\d.]+)\$",
    "collapse_beta": r"bottom row plots are for the ATLAS model with \S+ and \$\\beta=([\d.]+)\.\$",
    "collapse_clean": r"increase to almost \$(\d+)\\%\$ clean accuracy",
    "collapse_fall": r"drop of more than \$(\d+)\\%\$ on validation robust accuracy",
    "best_epoch": r"their best performance around (\d+) epochs",
    "best_epoch_jac_mnist": r"except (\d+) epochs for zero-step JAC on MNIST",
    "jac_clean_below": r"nominal accuracy is dropped to below \$(\d+)\\%",
    "jac_robust": r"to achieve a roughly \$(\d+)\\%\$ robust accuracy",
}


@pytest.fixture(scope="module")
def source() -> str:
    if "ATLAS_PAPER" not in os.environ:
        pytest.skip("set ATLAS_PAPER to the .tex file of the paper's source")
    return Path(os.environ["ATLAS_PAPER"]).read_text(encoding="utf-8")


def printed(source: str, label: str) -> list[tuple[str, dict[str, float]]]:
    """The rows of a LaTeX table: name, and its numbers by column."""
    start = source.index(rf"\label{{{label}}}")
    body = source[start : source.index(r"\end{tabular}", start)]
    found = []
    for line in body.splitlines():
        cells = line.partition(r"\\")[0].split("&")
        if "-step" in cells[min(1, len(cells) - 1)]:
            numbers = [re.sub(r"[^\d.]", "", cell) for cell in cells[2:]]
            pairs = zip(HEADS[label], numbers, strict=True)
            found.append((cells[1].strip(), {head: float(cell) for head, cell in pairs if cell}))
    return found


def kept() -> Iterator[dict[str, Any]]:
    for table in paper.tables()["tables"]:
        rows = {key: dict(zip(table["columns"], row, strict=True)) for key, row in table["rows"].items()}
        yield {**table, "rows": rows}


@pytest.mark.parametrize("of", PLACES)
def test_tables_of_several_data_sets(source: str, of: str) -> None:
    label, tasks = PLACES[of]
    ours = [table for task in tasks for table in kept() if (table["of"], table["task"]) == (of, task)]
    rows = [(paper.label(key), row) for table in ours for key, row in table["rows"].items()]
    assert rows == printed(source, label)


@pytest.mark.parametrize("task", EXTRA)
def test_rays_and_autoattack(source: str, task: str) -> None:
    (table,) = [t for t in kept() if (t["of"], t["task"]) == ("App. D.2", task)]
    ours = [(paper.label(key), row) for key, row in table["rows"].items()]
    assert ours == printed(source, EXTRA[task])


def test_five_step_adv(source: str) -> None:
    (table,) = [t for t in kept() if t["of"] == "Section 4"]
    found = re.search(r"5-step ADV.*?\(([\d.]+)s per batch\).*?reaching \$([\d.]+)\\%", source)
    assert found
    assert table["rows"] == {"adv-5": {"Multi-T": float(found[2]), "s/batch": float(found[1])}}


@pytest.mark.parametrize("name", paper.tables()["text"])
def test_what_the_text_says(source: str, name: str) -> None:
    found = re.search(SAID[name], source, re.DOTALL)
    assert found
    value = paper.text(name)
    assert [float(group) for group in found.groups()] == (value if isinstance(value, list) else [value])


def test_every_table_of_the_file_is_checked() -> None:
    assert {table["of"] for table in kept()} == {*PLACES, "App. D.2", "Section 4"}
    assert sum(len(table["rows"]) for table in kept()) == 21 + 10 + 8 + 16 + 1


def test_tables_that_share_a_cell_agree() -> None:
    for table in kept():
        for key, row in table["rows"].items():
            for column, value in row.items():
                assert paper.number(table["task"], key, column) == value


def test_what_the_paper_does_not_say_is_none() -> None:
    assert paper.number("cifar100", "adv-1", "Multi-T") is None
    assert paper.number("mnist", "adv-1", "RayS") is None
    assert paper.number("mnist", "no such row", "clean") is None
    assert paper.label("my-row") == "my-row"
