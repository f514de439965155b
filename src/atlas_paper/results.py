"""What the finished runs and evaluations of an artefact say, cell by cell, beside the paper."""

from __future__ import annotations

import math
import statistics
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atlas.evaluation import Report, Score
from atlas.evaluation.compare import Paired, paired
from atlas.evaluation.flags import Flag, Record, after
from atlas.evaluation.score import wilson
from atlas.reports.collect import origin
from atlas.reports.comparison import CLEAN, WORST
from atlas.reports.tables import Cell
from atlas_paper import paper
from atlas_paper.artefact import Row
from atlas_paper.paper import TIME
from atlas_paper.request import Request
from atlas_paper.run_status import RunStatus, course
from atlas_paper.runner import Runner


@dataclass(frozen=True)
class Findings:
    """All of an artefact that is there."""

    order: Request
    subjects: Mapping[str, tuple[Subject, ...]]
    """By the key of the row, one for each seed."""
    lab: Runner

    @property
    def rows(self) -> list[Row]:
        return self.order.all_rows

    def name(self, row: Row) -> str:
        """The row's, with the data set where there are several."""
        return row.label if len({each.task for each in self.rows}) == 1 else f"{row.label}, {row.task}"

    def value(self, row: Row, column: str) -> Value:
        """The cell of a row and a column."""
        number = paper.number(row.task, row.paper, column)
        if column == paper.TIME:
            return Value(column, number, (), timing=self.lab.timings.known(self.order.run(row, 0)))
        known = self.subjects[row.key]
        found = [(subject, subject.verdicts(column)) for subject in known]
        seeds = tuple(self._measured(subject, column, v) for subject, v in found if v is not None)
        fewer = [f"{len(seeds)} of {len(known)} seeds"] if 0 < len(seeds) < len(known) else []
        return Value(column, number, seeds, marks=(*self.marks(row), *fewer))

    def marks(self, row: Row) -> tuple[str, ...]:
        """What must be said beside every number of a row."""
        subjects = self.subjects[row.key]
        found = [mark for subject in subjects for mark in subject.course.marks]
        found += ["at chance"] if any(subject.at_chance for subject in subjects) else []
        return tuple(dict.fromkeys(found))

    def _measured(self, subject: Subject, column: str, verdicts: Verdicts) -> Measured:
        about = {"right": verdicts.bits, **subject.course.record()}
        if column == WORST:
            about["worst_of"] = list(subject.worst_of)
        label = subject.largest_label if column == CLEAN else column
        if label in subject.exams:
            about |= self._whence(subject, label)
        return Measured(subject.course.run.seed, verdicts.score, about)

    def _whence(self, subject: Subject, label: str) -> dict[str, Any]:
        """How the evaluation of a column was made."""
        exam = subject.exams[label]
        (column,) = (column for column in self.order.columns(subject.row) if column.label == label)
        precision = (
            f" --attack-dtype {self.order.attack_dtype}" if self.order.attack_dtype != "float32" else ""
        )
        return {
            "evaluate": f"atlas evaluate RUN {column.options}{precision}",
            "evaluate_commit": origin(exam.folder).get("commit"),
            "attack_seconds": round(sum(exam.report.seconds.values()), 1),
            "flags": [flag.name for flag in exam.report.flags],
        }

    def paired(self, row: str, other: str, column: str) -> list[tuple[int, Paired]]:
        """Two rows compared on the same images, seed by seed, where both are there and valid."""
        found = []
        for a, b in zip(self.subjects[row], self.subjects[other], strict=True):
            mine, theirs = a.verdicts(column), b.verdicts(column)
            if mine is not None and theirs is not None and not (mine.reasons or theirs.reasons):
                one, two = shared([mine, theirs])
                found.append((a.course.run.seed, paired(one.right, two.right)))
        return found

    @property
    def go_on(self) -> Request:
        """The order that completes the artefact: for all rows, if any is missing that was not asked for."""
        asked = {row.key for row in self.order.rows}
        lacking = {key for key, many in self.subjects.items() if not all(each.complete for each in many)}
        lacking |= {row.key for row in self.untimed}
        more = tuple(row.key for row in self.rows if row.key in asked | lacking)
        only = () if len(more) == len(self.order.scaled_rows) else more
        return self.order if lacking <= asked else replace(self.order, only=only)

    @property
    def untimed(self) -> list[Row]:
        """Rows that lack nothing but the time a batch."""
        return [
            row
            for row in self.rows
            if paper.TIME in self.order.shown(row)
            and all(each.complete for each in self.subjects[row.key])
            and self.value(row, paper.TIME).timing is None
        ]

    @property
    def missing(self) -> list[str]:
        """What the artefact lacks, in words."""
        words = []
        asked = {row.key for row in self.order.rows}
        for key, subjects in self.subjects.items():
            for subject in subjects:
                lacks = subject.course.lacks or ("" if subject.complete else "attacks not finished")
                left = "" if key in asked else ", not asked for"
                words += [f"{key} (seed {subject.course.run.seed}: {lacks}{left})"] if lacks else []
        return words + [
            f"{row.key} (time a batch not measured{'' if row.key in asked else ', not asked for'})"
            for row in self.untimed
        ]


def gather(order: Request, lab: Runner) -> Findings:
    """Read all that is there of an artefact, of rows that were not asked for too; nothing is run."""
    subjects = {
        row.key: tuple(_subject(order, lab, row, seed) for seed in range(order.seeds))
        for row in order.all_rows
    }
    return Findings(order, subjects, lab)


def _subject(order: Request, lab: Runner, row: Row, seed: int) -> Subject:
    made, columns = course(order.run(row, seed), lab.workspace), order.columns(row)
    exams = {}
    if made.finished and made.folder is not None:
        for column in columns:
            found = lab.examination(order, row, made.run, made.folder, column)
            if found is not None:
                exams[column.label] = Exam(*found)
    return Subject(row, made, exams, len(columns), order.setting(row.task).n(""))


@dataclass(frozen=True)
class Verdicts:
    """Which images a model got right: ids int64 [N], right bool [N]; reasons make them invalid."""

    ids: Tensor
    right: Tensor
    reasons: tuple[str, ...] = ()

    @property
    def score(self) -> Score:
        return Score(int(self.right.sum()), len(self.right), self.reasons)

    def among(self, ids: Tensor) -> Verdicts:
        """Those on the images `ids`, in the order of their numbers."""
        place = _places(self.ids, ids)
        return Verdicts(self.ids[place], self.right[place], self.reasons)

    @property
    def bits(self) -> str:
        """A bit for each image, in the order of their numbers: who has two such can test them as a pair."""
        return b64encode(np.packbits(self.among(self.ids).right.numpy()).tobytes()).decode()


def shared(many: Sequence[Verdicts]) -> list[Verdicts]:
    """Each on the images that all were shown."""
    ids = reduce(lambda a, b: a[torch.isin(a, b)], [verdicts.ids for verdicts in many])
    return [verdicts.among(ids) for verdicts in many]


def _places(ids: Tensor, wanted: Tensor) -> Tensor:
    """Where the wanted ones are among ids, in the order of their numbers."""
    place = torch.isin(ids, wanted).nonzero()[:, 0]
    return place[ids[place].argsort()]


@dataclass(frozen=True)
class Exam:
    """The finished evaluation of a column."""

    folder: Path
    report: Report

    @property
    def verdicts(self) -> Verdicts:
        return Verdicts(self.report.ids, self.report.robust, self.report.reasons)

    @property
    def own_flags(self) -> list[Flag]:
        """Those of the model's probes, and the fatal ones: the others are to be had from all columns."""
        seen = after(self.records(self.report.ids))
        return [flag for flag in self.report.flags if flag.fatal or flag not in seen]

    def records(self, ids: Tensor) -> list[Record]:
        """What each of its attacks did to the images `ids`, in the order of their numbers."""
        place = _places(self.report.ids, ids)
        names = ("tried", "attempt", "step", "broken")
        records = [result.record() for result in self.report.results.values()]
        return [replace(r, **{name: getattr(r, name)[place] for name in names}) for r in records]


@dataclass(frozen=True)
class Subject:
    """One row with one seed: the course of its training, and its examinations by column."""

    row: Row
    course: RunStatus
    exams: Mapping[str, Exam]
    expected: int
    """How many examinations it should have."""
    usual: int | None
    """The images of most of them; None for all."""

    @property
    def complete(self) -> bool:
        return self.course.finished and len(self.exams) == self.expected

    @property
    def largest_label(self) -> str:
        """The column with most images; "" where there is none yet."""
        return max(self.exams, key=lambda label: self.exams[label].report.n, default="")

    @property
    def largest(self) -> Exam | None:
        return self.exams.get(self.largest_label)

    @property
    def on_most(self) -> tuple[str, ...]:
        """The columns but those on fewer images than most."""
        if self.largest is None:
            return ()
        least = min(self.usual or self.largest.report.n, self.largest.report.n)
        return tuple(label for label, exam in self.exams.items() if exam.report.n >= least)

    @property
    def worst_of(self) -> tuple[str, ...]:
        """The columns of which the worst case is taken."""
        return self.on_most if self.complete else ()

    def verdicts(self, column: str) -> Verdicts | None:
        """Under a column; None where it is not there yet."""
        if column == CLEAN:
            if (most := self.largest) is None:
                return None
            return Verdicts(most.report.ids, most.report.clean_right, most.report.clean.reasons)
        if column == WORST:
            return _worst([self.exams[label].verdicts for label in self.worst_of])
        return self.exams[column].verdicts if column in self.exams else None

    @cached_property
    def flags(self) -> list[Flag]:
        """Why to doubt it: what columns say by themselves, each once, and what attacks together show.

        A column on few images is judged beside those that saw as many; it must not take images from them.
        """
        single = {flag.name: flag for exam in self.exams.values() for flag in exam.own_flags}
        many = [self.exams[label] for label in self.on_most]
        together = _together(many)
        for few in (exam for label, exam in self.exams.items() if label not in self.on_most):
            own = tuple(f"{name} fools " for name in few.report.results)
            rivals = [exam for exam in self.exams.values() if exam.report.n >= few.report.n]
            together += [flag for flag in _together(rivals) if flag.message.startswith(own)]
        return list(dict.fromkeys([*single.values(), *together]))

    @property
    def at_chance(self) -> bool:
        """Whether clean accuracy could be that of always naming the commonest class."""
        clean, most = self.verdicts(CLEAN), self.largest
        if clean is None or most is None:
            return False
        commonest = float(torch.bincount(most.report.y).max()) / most.report.n
        return clean.score.interval[0] <= commonest


def _together(exams: Sequence[Exam]) -> list[Flag]:
    """What their attacks show on the images that all of them saw."""
    if not exams:
        return []
    ids = shared([exam.verdicts for exam in exams])[0].ids
    return after([record for exam in exams for record in exam.records(ids)])


def _worst(parts: Sequence[Verdicts]) -> Verdicts | None:
    """Right under every one, on the images that all were shown."""
    if not parts:
        return None
    parts = shared(parts)
    right = reduce(torch.logical_and, [part.right for part in parts])
    reasons = tuple(dict.fromkeys(reason for part in parts for reason in part.reasons))
    return Verdicts(parts[0].ids, right, reasons)


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
