"""Tables of results, as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from atlas.evaluation import Score
from atlas.terminal import one_line

TIED = "†"
"""Stands after a value that is not significantly different from the best of its column."""
LATEX_WIDTH = 345
"""Points: the width of the text in LaTeX's article class."""


@dataclass(frozen=True)
class Cell:
    """A text, with its number and interval in the same unit, if it has them."""

    text: str
    value: float | None = None
    interval: tuple[float, float] | None = None
    best: bool = False
    tied: bool = False
    """Not significantly different from the best of the column."""
    note: str = ""
    """Said after the interval, such as a p-value."""

    @classmethod
    def of(cls, score: Score, pattern: str = "{:.1f}%", *, best: bool = False, tied: bool = False) -> Cell:
        """An accuracy in percent with its 95% interval; an invalid one is text."""
        if score.reasons:
            return cls(str(score))
        low, high = score.interval
        rate = 100 * score.rate
        return cls(pattern.format(rate), rate, (100 * low, 100 * high), best, tied)

    @classmethod
    def number(cls, value: float, pattern: str = "{:.1f}") -> Cell:
        """A number, written by the pattern."""
        return cls(pattern.format(value), value)

    @property
    def bounds(self) -> str:
        """The interval, [low, high], or nothing."""
        return "" if self.interval is None else "[{:.1f}, {:.1f}]".format(*self.interval)

    @property
    def marked(self) -> str:
        """The text with its mark."""
        return self.text + TIED * self.tied

    def plain(self) -> str | dict[str, Any]:
        """As JSON: the text alone, or all of it where there is a number."""
        if self.value is None:
            return self.text
        interval = None if self.interval is None else list(self.interval)
        plain = {"text": self.text, "value": self.value, "interval": interval}
        return plain | {"best": self.best, "tied": self.tied} | ({"note": self.note} if self.note else {})


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
        cells = (tuple(c if isinstance(c, Cell) else Cell(c) for c in row) for row in rows)
        return cls(title, tuple(columns), tuple(cells), **rest)

    @property
    def legend(self) -> tuple[str, ...]:
        """The notes, with what the marks mean where there are any."""
        cells = [cell for row in self.rows for cell in row]
        marks = [f"{TIED} {self.tied_means}"] if any(cell.tied for cell in cells) else []
        bold = ["bold: the best of its column"] if any(cell.best for cell in cells) else []
        return (*bold, *marks, *self.notes)

    def markdown(self) -> str:
        """GitHub's Markdown."""
        head, rule = [escape_markdown(column) for column in self.columns], ["---"] * len(self.columns)
        lines = [head, rule, *([_markdown(cell) for cell in row] for row in self.rows)]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        above = f"**{escape_markdown(self.title)}**\n\n" if self.title else ""
        below = "".join(f"\n{escape_markdown(note)}\n" for note in self.legend)
        return above + table + below

    def latex(self) -> str:
        """A table for `\\usepackage{booktabs}`; a wide one fits the page, with `\\usepackage{graphicx}`."""
        rows = [[_latex(cell) for cell in row] for row in self.rows]
        heads = [(escape_latex(column), "") for column in self.columns]
        wide = _points([heads, *rows]) > LATEX_WIDTH
        if wide:
            heads = [_in_two_lines(column) for column in self.columns]
        numeric = [any(row[k].value is not None for row in self.rows) for k in range(len(self.columns))]
        tabular = [
            rf"  \begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}",
            r"    \toprule",
            *_lines(heads, wide),
            r"    \midrule",
            *(line for row in rows for line in _lines(row, wide)),
            r"    \bottomrule",
            r"  \end{tabular}",
        ]
        if wide:  # in a smaller font, and scaled down if it is still wider than the page
            tabular = [
                r"  \footnotesize\setlength{\tabcolsep}{3pt}",
                r"  \sbox0{%",
                *tabular[:-1],
                f"{tabular[-1]}}}",
                r"  \ifdim\wd0>\linewidth \resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
            ]
        lines = [
            r"\begin{table*}" if wide else r"\begin{table}",
            r"  % \usepackage{booktabs,graphicx}" if wide else r"  % \usepackage{booktabs}",
            r"  \centering",
            rf"  \caption{{{escape_latex(self.title)}}}",
            *tabular,
            *(rf"  \par\smallskip{{\footnotesize {escape_latex(note)}}}" for note in self.legend),
            r"\end{table*}" if wide else r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """RFC 4180: numbers as numbers; a column with intervals is followed by its low and high ends."""
        wide = [any(row[k].interval for row in self.rows) for k in range(len(self.columns))]
        buffer = io.StringIO()
        write = csv.writer(buffer, lineterminator="\r\n").writerow
        ends = [("", " low", " high") if w else ("",) for w in wide]
        write([escape_csv(name + end) for k, name in enumerate(self.columns) for end in ends[k]])
        for row in self.rows:
            parts = list[str]()
            for cell, w in zip(row, wide, strict=True):
                parts.append(escape_csv(cell.text) if cell.value is None else str(cell.value))
                parts += map(str, cell.interval or ("", "")) if w else ()
            write(parts)
        return buffer.getvalue()

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        rows = [[cell.plain() for cell in row] for row in self.rows]
        return {"title": self.title, "columns": list(self.columns), "rows": rows, "notes": list(self.legend)}


def _markdown(cell: Cell) -> str:
    text = escape_markdown(cell.marked)
    parts = [f"**{text}**" if cell.best else text, cell.bounds, escape_markdown(cell.note)]
    return " ".join(filter(None, parts))


MINUS = re.compile(r"(?<![\w.])-(?=\d)")
"""The sign of a negative number, which LaTeX would set as a hyphen."""


def _latex(cell: Cell) -> tuple[str, str]:
    """Its text, and in small print its interval and note."""
    text = escape_latex(cell.marked)
    if cell.value is not None:
        text = MINUS.sub("$-$", text)
    small = " ".join(filter(None, [MINUS.sub("$-$", cell.bounds), escape_latex(cell.note)]))
    return rf"\textbf{{{text}}}" if cell.best else text, small


def _in_two_lines(head: str) -> tuple[str, str]:
    """The head of a column, split before a bracket or near its middle."""
    gaps = [m.start() for m in re.finditer(r" (?=\()", head)] or [m.start() for m in re.finditer(" ", head)]
    at = min(gaps, key=lambda gap: abs(gap - len(head) / 2), default=len(head))
    return escape_latex(head[:at]), escape_latex(head[at:].strip())


def _lines(cells: Sequence[tuple[str, str]], wide: bool) -> list[str]:
    """A row in one line; of a wide table the small print in a line below, where there is any."""
    pairs = [(text, rf"{{\scriptsize {small}}}" if small else "") for text, small in cells]
    stacked = [line for line in zip(*pairs, strict=True) if any(line)]
    lines = stacked if wide else [tuple(" ".join(filter(None, pair)) for pair in pairs)]
    return [rf"    {' & '.join(line)} \\" for line in lines]


def _points(rows: Sequence[Sequence[tuple[str, str]]]) -> float:
    """The approximate width of a table in a font of ten points, with the gaps between columns."""
    widths = [[5 * len(text) + 3.5 * len(small) for text, small in row] for row in rows]
    return float(sum(max(column) + 12 for column in zip(*widths, strict=True)))


FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""The first characters of formulas in spreadsheets."""
NEGATIVE = re.compile(r"-\d+(\.\d+)?([eE][+-]?\d+)?%?")
LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    **{char: f"{{{char}}}" for char in "[]*"},  # after a line's end they would be its options
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",  # its name is not known in LaTeX's own encoding
    "`": r"\textasciigrave{}",
    "†": r"\textdagger{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "²": r"\textsuperscript{2}",
    "ε": r"$\varepsilon$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "∞": r"$\infty$",
    "−": r"$-$",
    "–": "--",
    "→": r"$\rightarrow$",
}


def escape_markdown(text: str) -> str:
    """Text as itself within a line of Markdown or a cell of its tables."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)


def escape_latex(text: str) -> str:
    """Text as itself in LaTeX; what has no ASCII form is left to a Unicode engine."""
    return "".join(LATEX.get(char, char) for char in one_line(text))


def escape_csv(text: str) -> str:
    """Text that a spreadsheet shows and does not run; a number such as -1.5 stays one.

    Lines stay, but for a terminal that shows the file no other control character does.
    """
    text = "".join(char if char in "\t\n\r" else one_line(char) for char in text)
    harmless = not (text.startswith(FORMULA) or text.lstrip().startswith(FORMULA))
    return text if harmless or NEGATIVE.fullmatch(text) else f"'{text}"
