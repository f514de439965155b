"""Tables of results, once, for all who read them: Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from atlas.errors import UsageError
from atlas.evaluation import Score
from atlas.report import escape, latex

TIED = "†"
"""Stands after a value that is not significantly different from the best of its column."""


@dataclass(frozen=True)
class Cell:
    """Text, and behind it a number where there is one, with its interval in the same unit."""

    text: str
    value: float | None = None
    interval: tuple[float, float] | None = None
    digits: int = 1
    """Of the interval, after the point."""
    best: bool = False
    tied: bool = False
    """Not significantly different from the best of the column."""
    note: str = ""
    """Said after the interval, such as a p-value."""

    @classmethod
    def of(cls, score: Score, *, best: bool = False, tied: bool = False) -> Cell:
        """An accuracy in percent with its 95% interval; an invalid one is text, at best with a bound."""
        if score.reasons:
            return cls(str(score))
        low, high = score.interval
        rate = 100 * score.rate
        return cls(f"{rate:.1f}%", rate, (100 * low, 100 * high), best=best, tied=tied)

    @classmethod
    def number(cls, value: float, pattern: str = "{:.1f}") -> Cell:
        """A number, written by the pattern."""
        return cls(pattern.format(value), value)

    @property
    def bounds(self) -> str:
        """The interval, [low, high], or nothing."""
        if self.interval is None:
            return ""
        return "[" + ", ".join(f"{bound:.{self.digits}f}" for bound in self.interval) + "]"

    @property
    def mark(self) -> str:
        return TIED if self.tied else ""

    def plain(self) -> str | dict[str, Any]:
        """As JSON: the text alone, or all of it where there is a number."""
        if self.value is None:
            return self.text
        interval = None if self.interval is None else list(self.interval)
        numbers = {"value": self.value, "interval": interval}
        marks = {"best": self.best, "tied": self.tied} | ({"note": self.note} if self.note else {})
        return {"text": self.text, **numbers, **marks}


@dataclass(frozen=True)
class Table:
    """Rows of cells under their columns; text may stand for a cell without a number."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    tied_means: str = "not significantly different from the best of its column"

    @classmethod
    def of(
        cls, title: str, columns: Iterable[str], rows: Iterable[Iterable[Cell | str]], **rest: Any
    ) -> Table:
        """From any rows of cells and texts."""
        cells = tuple(tuple(_cell(value) for value in row) for row in rows)
        return cls(title, tuple(columns), cells, **rest)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise UsageError(
                    f"table {self.title!r}: a row has {len(row)} cells; wanted {len(self.columns)}: "
                    f"{', '.join(self.columns)}"
                )

    @property
    def legend(self) -> tuple[str, ...]:
        """The notes, with what the marks mean where there are any."""
        cells = [cell for row in self.rows for cell in row]
        marks = [f"{TIED} {self.tied_means}"] if any(cell.tied for cell in cells) else []
        bold = ["bold: the best of its column"] if any(cell.best for cell in cells) else []
        return (*bold, *marks, *self.notes)

    def markdown(self) -> str:
        """GitHub's form of a table."""
        head, *rest = [escape.markdown(column) for column in self.columns], ["---"] * len(self.columns)
        lines = [head, *rest, *([_markdown(cell) for cell in row] for row in self.rows)]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        above = f"**{escape.markdown(self.title)}**\n\n" if self.title else ""
        below = "".join(f"\n{escape.markdown(note)}\n" for note in self.legend)
        return above + table + below

    def latex(self) -> str:
        """A table for `\\usepackage{booktabs}`; a wide one fits the page, with `\\usepackage{graphicx}`."""
        return latex.written(self)

    def csv(self) -> str:
        """RFC 4180: numbers as numbers; a column with intervals is followed by its low and high ends."""
        wide = [any(row[k].interval for row in self.rows) for k in range(len(self.columns))]
        buffer = io.StringIO()
        write = csv.writer(buffer, lineterminator="\r\n").writerow
        ends = [("", " low", " high") if w else ("",) for w in wide]
        write([escape.csv(name + end) for k, name in enumerate(self.columns) for end in ends[k]])
        for row in self.rows:
            write([part for cell, w in zip(row, wide, strict=True) for part in _csv(cell, w)])
        return buffer.getvalue()

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        rows = [[cell.plain() for cell in row] for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": rows, "notes": list(self.legend)}


def _cell(value: Cell | str) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


def _markdown(cell: Cell) -> str:
    text = escape.markdown(cell.text) + cell.mark
    parts = [f"**{text}**" if cell.best else text, cell.bounds, escape.markdown(cell.note)]
    return " ".join(part for part in parts if part)


def _csv(cell: Cell, wide: bool) -> list[str]:
    shown = escape.csv(cell.text) if cell.value is None else _number(cell.value)
    ends = [_number(end) for end in cell.interval] if cell.interval else ["", ""]
    return [shown, *ends] if wide else [shown]


def _number(value: float) -> str:
    """All its digits; numpy's numbers would write their type too."""
    return str(value) if isinstance(value, int) else repr(float(value))
