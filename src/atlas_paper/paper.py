"""The paper's own numbers, from `paper.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

TIME = "s/batch"
"""The column that holds seconds; all others are accuracies in percent."""


@cache
def tables() -> dict[str, Any]:
    """The whole file."""
    return tomllib.loads((resources.files("atlas_paper") / "paper.toml").read_text("utf-8"))


def label(row: str) -> str:
    """What the paper calls a row; one that is not of the paper keeps its key."""
    return str(tables()["labels"].get(row, row))


def number(task: str, row: str, column: str) -> float | None:
    """The paper's number for a method on a data set, from whichever table has it; None where none has.

    Tables that share a cell agree in it.
    """
    for table in tables()["tables"]:
        if table["task"] == task and row in table["rows"] and column in table["columns"]:
            return float(table["rows"][row][table["columns"].index(column)])
    return None


def text(name: str) -> Any:
    """A number, or numbers, that the paper's text states."""
    return tables()["text"][name]
