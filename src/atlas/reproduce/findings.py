"""What the finished runs and evaluations of an artefact say, cell by cell, beside the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path

import torch
from torch import Tensor

from atlas.evaluation import Report, Score
from atlas.evaluation.compare import Paired, paired
from atlas.evaluation.flags import Flag, Record, after
from atlas.reproduce import paper
from atlas.reproduce.artefact import CLEAN, WORST, Row
from atlas.reproduce.course import Course, course
from atlas.reproduce.lab import Lab
from atlas.reproduce.order import Order
from atlas.reproduce.scales import TASKS
from atlas.reproduce.values import Measured, Value
from atlas.reproduce.workspace import origin


@dataclass(frozen=True)
class Exam:
    """The finished evaluation of a column."""

    folder: Path
    report: Report

    @property
    def verdicts(self) -> Verdicts:
        return Verdicts(self.report.ids, self.report.robust, self.report.reasons)


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
        """Those on the images `ids` only, in the order of ids, which are sorted."""
        mine = torch.isin(self.ids, ids)
        order = self.ids[mine].argsort()
        return Verdicts(self.ids[mine][order], self.right[mine][order], self.reasons)


def shared(many: list[Verdicts]) -> list[Verdicts]:
    """Each on the images that all were shown."""
    ids = reduce(lambda a, b: a[torch.isin(a, b)], [verdicts.ids for verdicts in many])
    return [verdicts.among(ids) for verdicts in many]


@dataclass(frozen=True)
class Subject:
    """One row with one seed: the course of its training, and its examinations by column."""

    row: Row
    course: Course
    exams: Mapping[str, Exam]
    complete: bool
    """Whether all of its columns are there."""

    def verdicts(self, column: str) -> Verdicts | None:
        """Under a column; None where it is not there yet."""
        if column == CLEAN:
            most = max(self.exams.values(), key=lambda exam: exam.report.n, default=None)
            if most is None:
                return None
            return Verdicts(most.report.ids, most.report.clean_right, most.report.clean.reasons)
        if column == WORST:
            return self._worst() if self.complete and self.exams else None
        return self.exams[column].verdicts if column in self.exams else None

    def _worst(self) -> Verdicts:
        """Right under every attack of the row, on the images that all of them were shown."""
        parts = shared([exam.verdicts for exam in self.exams.values()])
        right = reduce(torch.logical_and, [part.right for part in parts])
        reasons = tuple(dict.fromkeys(reason for part in parts for reason in part.reasons))
        return Verdicts(parts[0].ids, right, reasons)

    @cached_property
    def flags(self) -> list[Flag]:
        """What the attacks of all columns together give reason to doubt, each flag once."""
        if not self.exams:
            return []
        ids = shared([exam.verdicts for exam in self.exams.values()])[0].ids
        found = [flag for exam in self.exams.values() for flag in exam.report.flags if flag.fatal]
        found += after([record for exam in self.exams.values() for record in _records(exam.report, ids)])
        return list({flag.name: flag for flag in found}.values())

    @property
    def at_chance(self) -> bool:
        """Whether the model cannot be told from guessing: its numbers say nothing of its method."""
        clean = self.verdicts(CLEAN)
        return clean is not None and clean.score.interval[0] <= 1 / TASKS[self.row.task]


@dataclass(frozen=True)
class Findings:
    """All of an artefact that is there."""

    order: Order
    subjects: Mapping[str, tuple[Subject, ...]]
    """By the key of the row, one for each seed."""
    lab: Lab

    @property
    def rows(self) -> list[Row]:
        return self.order.all_rows

    def name(self, row: Row) -> str:
        """The row's, with the data set where there are several."""
        return row.label if len({each.task for each in self.rows}) == 1 else f"{row.label}, {row.task}"

    def value(self, row: Row, column: str) -> Value:
        """The cell of a row and a column."""
        number = paper.number(row.task, row.paper, column)
        known = self.subjects.get(row.key, ())
        if column == paper.TIME:
            return Value(column, number, (), seconds=self.lab.timings.known(self.order.run(row, 0)))
        found = [(subject, subject.verdicts(column)) for subject in known]
        seeds = tuple(self._measured(subject, column, v) for subject, v in found if v is not None)
        return Value(column, number, seeds, marks=marks(known))

    def _measured(self, subject: Subject, column: str, verdicts: Verdicts) -> Measured:
        exam = subject.exams.get(column)
        run, course = subject.course.run, subject.course
        about = course.record()
        if exam is not None:
            column_of = next(c for c in self.order.columns(subject.row) if c.label == column)
            about["evaluate"] = f"atlas evaluate RUN {column_of.options}"
            about["evaluate_commit"] = origin(exam.folder).get("commit")
            about["attack_seconds"] = round(sum(exam.report.seconds.values()), 1)
            about["flags"] = [flag.name for flag in exam.report.flags]
        return Measured(run.seed, verdicts.score, about)

    def paired(self, row: str, other: str, column: str) -> list[tuple[int, Paired]]:
        """Two rows compared on the same images, seed by seed, where both are there and valid."""
        pairs = zip(self.subjects.get(row, ()), self.subjects.get(other, ()), strict=False)
        found = []
        for a, b in pairs:
            mine, theirs = a.verdicts(column), b.verdicts(column)
            if mine is None or theirs is None or mine.reasons or theirs.reasons:
                continue
            one, two = shared([mine, theirs])
            found.append((a.course.run.seed, paired(one.right, two.right)))
        return found

    @property
    def go_on(self) -> Order:
        """The order that completes the artefact: for all rows, if any is missing that was not asked for."""
        asked = {row.key for row in self.order.rows}
        lacking = {key for key, many in self.subjects.items() if not all(each.complete for each in many)}
        return self.order if lacking <= asked else replace(self.order, only=())

    @property
    def missing(self) -> list[str]:
        """What the artefact lacks, in words."""
        words = []
        for row in self.rows:
            asked = row in self.order.rows
            for subject in self.subjects[row.key]:
                lacks = subject.course.lacks or ("" if subject.complete else "attacks not finished")
                left = "" if asked else ", not asked for"
                words += [f"{row.key} (seed {subject.course.run.seed}: {lacks}{left})"] if lacks else []
        return words


def _records(report: Report, ids: Tensor) -> list[Record]:
    """What each attack of a report did to the images `ids`, in their order."""
    place = torch.isin(report.ids, ids).nonzero()[:, 0]
    place = place[report.ids[place].argsort()]
    names = ("tried", "attempt", "step", "broken")
    records = [result.record() for result in report.results.values()]
    return [replace(r, **{name: getattr(r, name)[place] for name in names}) for r in records]


def marks(subjects: tuple[Subject, ...]) -> tuple[str, ...]:
    """What must be said beside every number of a row."""
    found = [mark for subject in subjects for mark in subject.course.marks]
    return tuple(dict.fromkeys([*found, *(["at chance"] if any(s.at_chance for s in subjects) else [])]))


def gather(order: Order, lab: Lab) -> Findings:
    """Read all that is there of an artefact, of rows that were not asked for too; nothing is run."""
    subjects = {
        row.key: tuple(_subject(order, lab, row, seed) for seed in range(order.seeds))
        for row in order.all_rows
    }
    return Findings(order, subjects, lab)


def _subject(order: Order, lab: Lab, row: Row, seed: int) -> Subject:
    run = order.run(row, seed)
    made = course(run, lab.workspace)
    columns = order.columns(row)
    exams = {}
    if made.finished and made.folder is not None:
        for column in columns:
            found = lab.examination(order, row, run, made.folder, column)
            if found is not None:
                exams[column.label] = Exam(*found)
    return Subject(row, made, exams, made.finished and len(exams) == len(columns))
