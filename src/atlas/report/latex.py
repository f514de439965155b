"""A table as LaTeX, on the page whatever its width."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from atlas.report import escape

if TYPE_CHECKING:
    from atlas.report.tables import Cell, Table

MINUS = re.compile(r"(?<![\w.])-(?=\d)")
"""The sign of a negative number, for which LaTeX would set a hyphen."""
PAGE = 345
"""Points: the width of the text in LaTeX's own article."""


def written(table: Table) -> str:
    """The table for `\\usepackage{booktabs}`; a wide one fits the page, with `\\usepackage{graphicx}`."""
    rows = [[_latex(cell) for cell in row] for row in table.rows]
    heads = [(escape.latex(column), "") for column in table.columns]
    wide = _points([heads, *rows]) > PAGE
    numeric = [any(row[k].value is not None for row in table.rows) for k in range(len(table.columns))]
    tabular = [
        rf"  \begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}",
        r"    \toprule",
        *_lines([_broken(column) for column in table.columns] if wide else heads, wide),
        r"    \midrule",
        *(line for row in rows for line in _lines(row, wide)),
        r"    \bottomrule",
        r"  \end{tabular}",
    ]
    lines = [
        r"\begin{table*}" if wide else r"\begin{table}",
        r"  % \usepackage{booktabs,graphicx}" if wide else r"  % \usepackage{booktabs}",
        r"  \centering",
        rf"  \caption{{{escape.latex(table.title)}}}",
        *(_fitting(tabular) if wide else tabular),
        *(rf"  \par\smallskip{{\footnotesize {escape.latex(note)}}}" for note in table.legend),
        r"\end{table*}" if wide else r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex(cell: Cell) -> tuple[str, str]:
    """What it says, and in small print its interval and note."""
    text = escape.latex(cell.text + cell.mark)
    if cell.value is not None:
        text = MINUS.sub("$-$", text)
    small = " ".join(filter(None, [MINUS.sub("$-$", cell.bounds), escape.latex(cell.note)]))
    return rf"\textbf{{{text}}}" if cell.best else text, small


def _broken(head: str) -> tuple[str, str]:
    """The head of a column in two lines: before a bracket, or near its middle."""
    gaps = [m.start() for m in re.finditer(r" (?=\()", head)] or [m.start() for m in re.finditer(" ", head)]
    at = min(gaps, key=lambda gap: abs(gap - len(head) / 2), default=len(head))
    return escape.latex(head[:at]), escape.latex(head[at:].strip())


def _lines(cells: Sequence[tuple[str, str]], wide: bool) -> list[str]:
    """A row in one line; of a wide table the small print in a line below, where there is any."""
    pairs = [(text, rf"{{\scriptsize {small}}}" if small else "") for text, small in cells]
    stacked = [line for line in zip(*pairs, strict=True) if any(line)]
    lines = stacked if wide else [tuple(" ".join(filter(None, pair)) for pair in pairs)]
    return [rf"    {' & '.join(line)} \\" for line in lines]


def _points(rows: Sequence[Sequence[tuple[str, str]]]) -> float:
    """About how wide a table comes out in a font of ten points, with the gaps between columns."""
    widths = [[5 * len(text) + 3.5 * len(small) for text, small in row] for row in rows]
    return float(sum(max(column) + 12 for column in zip(*widths, strict=True)))


def _fitting(tabular: Sequence[str]) -> list[str]:
    """A tabular in a smaller font, and scaled down, never up, where it is wider than the page even so."""
    return [
        r"  \footnotesize\setlength{\tabcolsep}{3pt}",
        r"  \sbox0{%",
        *tabular[:-1],
        f"{tabular[-1]}}}",
        r"  \ifdim\wd0>\linewidth \resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi",
    ]
