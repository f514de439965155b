"""The order of methods that the paper claims, tested on the same images."""

from __future__ import annotations

from dataclasses import dataclass

from atlas.reports.comparison import WORST
from atlas.reports.tables import Cell, Table
from atlas_paper.artefact import STRONG, Row
from atlas_paper.comparison import TableRow, title
from atlas_paper.results import Findings

HEADS = ("under", "against", "seed", "n", "only the first right", "only the other right", "difference", "p")
NOTE = (
    "McNemar's exact test, two-sided, on the same images. The difference is that of accuracies, the first "
    "minus the other, in points, with a 95% interval; p is the chance of one as large if both were equally "
    "robust, not corrected for the number of tests. One seed of each says nothing of how much seeds differ."
)


@dataclass(frozen=True)
class PairedTests:
    """One row against others, under each strong attack and in the worst case, whatever comes out."""

    one: str
    others: tuple[str, ...]

    def __call__(self, findings: Findings) -> Table | None:
        names = {row.key: _named(findings, row) for row in findings.rows}
        columns = [c for c in (*STRONG, WORST) if c in findings.order.artefact.columns]
        others = [other for other in self.others if other in names and self.one in names]
        lines = [
            line
            for column in columns
            for other in others
            for line in _lines(findings, self.one, other, names[other], column)
        ]
        if not lines:
            return None
        return Table.of(f"{title(findings)}: {names[self.one]} against others", HEADS, lines, notes=(NOTE,))


def _named(findings: Findings, row: Row) -> str:
    """The row, with what must be said beside its numbers."""
    marks = findings.marks(row)
    return f"{findings.name(row)} ({', '.join(marks)})" if marks else findings.name(row)


def _lines(findings: Findings, one: str, other: str, name: str, column: str) -> list[TableRow]:
    lines: list[TableRow] = []
    for seed, pair in findings.paired(one, other, column):
        gap, ends = 100 * pair.difference, tuple(100 * end for end in pair.interval)
        difference = Cell(f"{gap:+.2f}", gap, (ends[0], ends[1]))
        counts = [str(pair.n), str(pair.only_a), str(pair.only_b)]
        lines.append(
            [column, name, str(seed), *counts, difference, Cell(f"{pair.p_value:.2g}", pair.p_value)]
        )
    return lines
