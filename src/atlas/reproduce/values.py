"""A cell: ours over the seeds with its interval, the paper's, and the difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atlas.evaluation import Score
from atlas.evaluation.score import wilson
from atlas.report.tables import Cell
from atlas.reproduce.paper import TIME

T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5% points of Student's t for 1, 2, ... degrees of freedom."""


@dataclass(frozen=True)
class Measured:
    """One number of one seed, and where it comes from."""

    seed: int
    score: Score
    about: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        score = self.score.plain()
        return {"k": score.pop("right", None), **score, **self.about, "seed": self.seed}


@dataclass(frozen=True)
class Value:
    """All that is known of one cell."""

    column: str
    paper: float | None
    seeds: tuple[Measured, ...]
    timing: Mapping[str, Any] | None = None
    """Of the column of times: the seconds, and what they were measured on."""
    marks: tuple[str, ...] = ()
    """What must be said beside the number: collapsed, failed, at chance."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why there is no number although all was run."""
        return tuple(dict.fromkeys(reason for each in self.seeds for reason in each.score.reasons))

    @property
    def ours(self) -> float | None:
        """In the paper's unit: percent, the mean over the seeds; or seconds."""
        if self.column == TIME:
            return None if self.timing is None else float(self.timing["seconds"])
        if not self.seeds or self.reasons:
            return None
        return 100 * statistics.mean(each.score.rate for each in self.seeds)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95%: Wilson's, for other images, and Student's, for other seeds, as independent errors.

        All seeds see the same images, so that their spread alone says nothing of the choice of those.
        """
        if self.ours is None or self.n is None:
            return None
        low, high = (100 * end for end in wilson(self.ours / 100, self.n))
        half = _student([100 * each.score.rate for each in self.seeds])
        ends = self.ours - math.hypot(self.ours - low, half), self.ours + math.hypot(high - self.ours, half)
        return max(0.0, ends[0]), min(100.0, ends[1])

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in points. Times are of other machines: no difference."""
        if self.ours is None or self.paper is None or self.column == TIME:
            return None
        return self.ours - self.paper

    @property
    def status(self) -> str:
        return "invalid" if self.reasons else "missing" if self.ours is None else "done"

    @property
    def n(self) -> int | None:
        return self.seeds[0].score.n if self.seeds else None

    def cell(self) -> Cell:
        """Ours, as it is shown: what is invalid, failed or not there has no number."""
        if self.reasons:
            return Cell(f"invalid ({', '.join(self.reasons)})")
        if self.ours is None:
            return Cell("failed" if "failed" in self.marks else "-")
        if self.column == TIME:
            return Cell(f"{self.ours:.3g}", self.ours)
        marked = "".join(f", {mark}" for mark in self.marks)
        return Cell(f"{self.ours:.2f}{marked}", self.ours, self.interval)

    def paper_cell(self) -> Cell:
        if self.paper is None:
            return Cell("-")
        return Cell(f"{self.paper:g}" if self.column == TIME else f"{self.paper:.2f}", self.paper)

    def difference_cell(self) -> Cell:
        return Cell("-") if self.difference is None else Cell(f"{self.difference:+.2f}", self.difference)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "paper": self.paper,
            "ours": self.ours,
            "interval": None if self.interval is None else list(self.interval),
            "difference": self.difference,
            "status": self.status,
            "marks": list(self.marks),
            "reasons": list(self.reasons),
            "seeds": [each.plain() for each in self.seeds],
            **({} if self.timing is None else {"timing": dict(self.timing)}),
        }


def _student(values: Sequence[float]) -> float:
    """Half of the 95% interval of their mean; nothing where one value shows no spread."""
    if len(values) == 1:
        return 0.0
    return T_95[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
