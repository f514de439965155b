"""What the finished runs and evaluations of an artefact show, cell by cell, beside the paper."""

from __future__ import annotations

import math
import statistics
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atlas.evaluation import Report, Score
from atlas.evaluation.compare import Paired, paired
from atlas.evaluation.flags import Flag, after
from atlas.evaluation.results import COLUMNS, AttackResult
from atlas.evaluation.score import ON_CLEAN, WORST_CASE, wilson
from atlas.reports.collect import origin
from atlas.reports.tables import Cell, Table
from atlas_paper import paper
from atlas_paper.artefact import ModelRow
from atlas_paper.paper import TIME
from atlas_paper.request import Request
from atlas_paper.runner import Runner
from atlas_paper.workspace import RunStatus

T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5% points of Student's t for 1, 2, ... degrees of freedom."""
NOTHING = "-"
"""The text of a cell without a number."""


@dataclass(frozen=True, eq=False)
class CellResult:
    """All that is known of one cell of a table: our scores by seed, and the paper's number."""

    column: str
    paper: float | None
    scores: Mapping[int, Score] = field(default_factory=dict)
    """By seed."""
    ids: Tensor = torch.empty(0, dtype=torch.int64)
    """The images in ascending order, int64 [N], the same for all seeds."""
    right: Mapping[int, Tensor] = field(default_factory=dict)
    """By seed: which images the model gets right, bool [N]."""
    about: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """By seed: the run and the evaluation behind the score."""
    timing: Mapping[str, Any] | None = None
    """Of the column of times: the seconds, and the machine."""
    marks: tuple[str, ...] = ()
    """What must be said beside the number: collapsed, failed, at chance."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Fatal warnings, for which there is no number."""
        return tuple(dict.fromkeys(reason for score in self.scores.values() for reason in score.reasons))

    @property
    def ours(self) -> float | None:
        """In the paper's unit: percent, the mean over the seeds; or seconds."""
        if self.column == TIME:
            return None if self.timing is None else float(self.timing["seconds"])
        if self.reasons or not self.scores:
            return None
        return 100 * statistics.mean(score.rate for score in self.scores.values())

    @property
    def interval(self) -> tuple[float, float] | None:
        """95%: Wilson's, for other images, and Student's, for other seeds, as independent errors.

        All seeds see the same images, so their spread alone does not cover the choice of images.
        """
        if self.ours is None or self.n is None:
            return None
        low, high = (100 * end for end in wilson(self.ours / 100, self.n))
        rates, half = [100 * score.rate for score in self.scores.values()], 0.0
        if len(rates) > 1:
            half = T_95[len(rates) - 2] * statistics.stdev(rates) / math.sqrt(len(rates))
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
        return next((score.n for score in self.scores.values()), None)

    @property
    def empty(self) -> bool:
        """Whether there is neither a number, the paper's or ours, nor a reason why there is none."""
        return self.paper is None and self.ours is None and not self.reasons

    def paired(self, other: CellResult) -> Iterator[tuple[int, Paired]]:
        """Compare two models on the same images, seed by seed, where both have valid results."""
        mine, theirs = torch.isin(self.ids, other.ids), torch.isin(other.ids, self.ids)
        for seed, right in self.right.items():
            if seed in other.right and not (self.scores[seed].reasons or other.scores[seed].reasons):
                yield seed, paired(right[mine], other.right[seed][theirs])

    def cell(self) -> Cell:
        """Ours, as it is shown: what is invalid, failed or missing has no number."""
        if self.reasons:
            return Cell(f"invalid ({', '.join(self.reasons)})")
        if self.ours is None:
            return Cell("failed" if "failed" in self.marks else NOTHING)
        if self.column == TIME:
            return Cell(f"{self.ours:.3g}", self.ours)
        marked = "".join(f", {mark}" for mark in self.marks)
        return Cell(f"{self.ours:.2f}{marked}", self.ours, self.interval)

    def paper_cell(self) -> Cell:
        if self.paper is None:
            return Cell(NOTHING)
        return Cell(f"{self.paper:g}" if self.column == TIME else f"{self.paper:.2f}", self.paper)

    def difference_cell(self) -> Cell:
        return Cell(NOTHING) if self.difference is None else Cell(f"{self.difference:+.2f}", self.difference)

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
            "seeds": [self._plain(seed) for seed in self.scores],
            **({} if self.timing is None else {"timing": dict(self.timing)}),
        }

    def _plain(self, seed: int) -> dict[str, Any]:
        score = self.scores[seed].plain()
        found = {"k": score.pop("right", None), **score}
        if seed in self.right:  # a bit per image, so that two results can be tested as a pair
            found["right"] = b64encode(np.packbits(self.right[seed].numpy()).tobytes()).decode()
        return {**found, **self.about.get(seed, {}), "seed": seed}


@dataclass(frozen=True)
class SeedResult:
    """One row from one seed: the status of its training, and its finished evaluations by column."""

    status: RunStatus
    reports: Mapping[str, Report]
    expected: int
    """How many evaluations it should have."""
    usual: int | None
    """The images of most of them; None for all."""

    @property
    def complete(self) -> bool:
        return self.status.finished and len(self.reports) == self.expected

    @property
    def largest(self) -> str:
        """The column with most images; "" where there is none yet."""
        return max(self.reports, key=lambda label: self.reports[label].n, default="")

    @property
    def on_most(self) -> tuple[str, ...]:
        """The columns except those on fewer images than most."""
        largest = max((report.n for report in self.reports.values()), default=0)
        least = min(self.usual or largest, largest)
        return tuple(label for label, report in self.reports.items() if report.n >= least)

    @property
    def worst_of(self) -> tuple[str, ...]:
        """The columns over which the worst case is taken."""
        return self.on_most if self.complete else ()

    def right(self, column: str) -> tuple[Tensor, Tensor, Score] | None:
        """The images of a column in ascending order, which of them are right, and the score.

        None where the column is not finished. The worst case is taken over the images that all have seen.
        """
        labels = {ON_CLEAN: (self.largest,), WORST_CASE: self.worst_of}.get(column, (column,))
        reports = [self.reports[label] for label in labels if label in self.reports]
        if not reports:
            return None
        ids = _shared_ids(reports)
        clean = column == ON_CLEAN
        parts = [(r.clean_right if clean else r.robust)[_positions(r.ids, ids)] for r in reports]
        right = reduce(torch.logical_and, parts)
        found = reports[0].clean.reasons if clean else [reason for r in reports for reason in r.reasons]
        return ids, right, Score(int(right.sum()), len(right), tuple(dict.fromkeys(found)))

    @cached_property
    def flags(self) -> list[Flag]:
        """Warnings: those of single columns, each once, and what the attacks show together.

        A column on few images is judged beside those that saw as many; it must not take images from them.
        """
        reports = self.reports
        single = {flag.name: flag for report in reports.values() for flag in _own_flags(report)}
        together = _flags_of([reports[label] for label in self.on_most])
        for few in (report for label, report in reports.items() if label not in self.on_most):
            own = tuple(f"{name} fools " for name in few.results)
            rivals = [report for report in reports.values() if report.n >= few.n]
            together += [flag for flag in _flags_of(rivals) if flag.message.startswith(own)]
        return list(dict.fromkeys([*single.values(), *together]))

    @property
    def at_chance(self) -> bool:
        """Whether clean accuracy could be that of always predicting the most frequent class."""
        clean = self.right(ON_CLEAN)
        if clean is None:
            return False
        report = self.reports[self.largest]
        return clean[2].interval[0] <= float(torch.bincount(report.y).max()) / report.n


def _shared_ids(reports: Sequence[Report]) -> Tensor:
    """The images that all have seen, in ascending order."""
    return reduce(lambda a, b: a[torch.isin(a, b)], [report.ids for report in reports]).sort().values


def _positions(ids: Tensor, wanted: Tensor) -> Tensor:
    """The positions of the wanted ones in ids, by ascending id."""
    found = torch.isin(ids, wanted).nonzero()[:, 0]
    return found[ids[found].argsort()]


def _on(report: Report, ids: Tensor) -> list[AttackResult]:
    """What each attack of the report did to the images `ids`, by ascending id."""
    at = _positions(report.ids, ids)
    return [
        replace(result, **{name: getattr(result, name)[at] for name in COLUMNS})
        for result in report.results.values()
    ]


def _own_flags(report: Report) -> list[Flag]:
    """Those of the model's probes, and the fatal ones: the others are derived from all columns together."""
    seen = {flag.name for flag in after(_on(report, report.ids))}
    return [flag for flag in report.flags if flag.fatal or flag.name not in seen]


def _flags_of(reports: Sequence[Report]) -> list[Flag]:
    """What the attacks show on the images that all of them saw."""
    if not reports:
        return []
    ids = _shared_ids(reports)
    return after([result for report in reports for result in _on(report, ids)])


@dataclass(frozen=True)
class Results:
    """All of an artefact that is finished."""

    request: Request
    seeds: Mapping[str, tuple[SeedResult, ...]]
    """By the key of the row, one for each seed."""
    runner: Runner

    @property
    def rows(self) -> list[ModelRow]:
        return self.request.all_rows

    def name(self, row: ModelRow) -> str:
        """The row's label, with the data set where there are several."""
        return row.label if len({each.task for each in self.rows}) == 1 else f"{row.label}, {row.task}"

    @cached_property
    def cells(self) -> dict[str, dict[str, CellResult]]:
        """By the key of the row, then by column."""
        return {row.key: {c: self._cell(row, c) for c in self.request.shown(row)} for row in self.rows}

    def cell(self, row: ModelRow, column: str) -> CellResult:
        """The cell of a row; an empty one where its data set lacks the column."""
        return self.cells[row.key].get(column, CellResult(column, None))

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The artefact's tables beside the comparison, those that have what they need."""
        made = {name: make(self) for name, make in self.request.artefact.tables.items()}
        return {name: table for name, table in made.items() if table is not None}

    def _cell(self, row: ModelRow, column: str) -> CellResult:
        number = paper.number(row.task, row.paper, column)
        if column == TIME:
            return CellResult(column, number, timing=self.runner.timings.known(self.request.run(row, 0)))
        seeds = dict(enumerate(self.seeds[row.key]))
        found = {seed: right for seed, each in seeds.items() if (right := each.right(column)) is not None}
        if not found:
            return CellResult(column, number, marks=self.marks(row))
        fewer = [f"{len(found)} of {len(seeds)} seeds"] if len(found) < len(seeds) else []
        return CellResult(
            column,
            number,
            {seed: score for seed, (_, _, score) in found.items()},
            next(iter(found.values()))[0],
            {seed: right for seed, (_, right, _) in found.items()},
            {seed: self._about(row, seeds[seed], column) for seed in found},
            marks=(*self.marks(row), *fewer),
        )

    def marks(self, row: ModelRow) -> tuple[str, ...]:
        """What must be said beside every number of a row."""
        marks = [mark for each in self.seeds[row.key] for mark in each.status.marks]
        marks += ["at chance"] if any(each.at_chance for each in self.seeds[row.key]) else []
        return tuple(dict.fromkeys(marks))

    def _about(self, row: ModelRow, one: SeedResult, column: str) -> dict[str, Any]:
        """The run and the evaluation behind a score."""
        about = one.status.record()
        if column == WORST_CASE:
            return {**about, "worst_of": list(one.worst_of)}
        label = one.largest if column == ON_CLEAN else column
        report, dtype = one.reports[label], self.request.attack_dtype
        (options,) = (each.options for each in self.request.columns(row) if each.label == label)
        precision = f" --attack-dtype {dtype}" if dtype != "float32" else ""
        return {
            **about,
            "evaluate": f"atlas evaluate RUN {options}{precision}",
            "evaluate_commit": origin(report.folder).get("commit") if report.folder else None,
            "attack_seconds": round(sum(report.seconds.values()), 1),
            "flags": [flag.name for flag in report.flags],
        }

    @cached_property
    def _lacks(self) -> list[tuple[str, str]]:
        """The key of each row that is not complete, and what it lacks."""
        lacks = [
            (key, f"seed {seed}: {each.status.lacks or 'attacks not finished'}")
            for key, seeds in self.seeds.items()
            for seed, each in enumerate(seeds)
            if not each.complete
        ]
        untimed = {key for key, cells in self.cells.items() if TIME in cells and cells[TIME].timing is None}
        untimed -= {key for key, _ in lacks}
        return lacks + [(key, "time per batch not measured") for key in self.seeds if key in untimed]

    @property
    def missing(self) -> list[str]:
        """What the artefact lacks."""
        asked = {row.key for row in self.request.rows}
        return [f"{key} ({what}{'' if key in asked else ', not asked for'})" for key, what in self._lacks]

    @property
    def remaining(self) -> Request:
        """The request that completes the artefact: also the missing rows that were not asked for."""
        asked, lacking = {row.key for row in self.request.rows}, {key for key, _ in self._lacks}
        if lacking <= asked:
            return self.request
        keys = tuple(row.key for row in self.rows if row.key in asked | lacking)
        return replace(self.request, only=() if len(keys) == len(self.request.scaled_rows) else keys)


def gather(request: Request, runner: Runner) -> Results:
    """Read all that is finished of an artefact, also of rows that were not asked for; nothing is run."""
    return Results(
        request,
        {
            row.key: tuple(_seed(request, runner, row, k) for k in range(request.seeds))
            for row in request.all_rows
        },
        runner,
    )


def _seed(request: Request, runner: Runner, row: ModelRow, seed: int) -> SeedResult:
    status, columns = runner.workspace.status(request.run(row, seed)), request.columns(row)
    reports = {}
    if status.finished and status.folder is not None:
        for column in columns:
            report = runner.report(request, row, status.run, status.folder, column)
            if report is not None:
                reports[column.label] = report
    return SeedResult(status, reports, len(columns), request.setting(row.task).n(""))
