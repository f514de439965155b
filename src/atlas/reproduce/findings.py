"""What the finished runs and evaluations of an artefact say, cell by cell, beside the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from atlas.evaluation.compare import Paired, paired
from atlas.report.collect import origin
from atlas.report.comparison import CLEAN, WORST
from atlas.reproduce import paper
from atlas.reproduce.artefact import Row
from atlas.reproduce.course import course
from atlas.reproduce.lab import Lab
from atlas.reproduce.order import Order
from atlas.reproduce.values import Measured, Value
from atlas.reproduce.verdicts import Exam, Subject, Verdicts, shared


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
    def go_on(self) -> Order:
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


def gather(order: Order, lab: Lab) -> Findings:
    """Read all that is there of an artefact, of rows that were not asked for too; nothing is run."""
    subjects = {
        row.key: tuple(_subject(order, lab, row, seed) for seed in range(order.seeds))
        for row in order.all_rows
    }
    return Findings(order, subjects, lab)


def _subject(order: Order, lab: Lab, row: Row, seed: int) -> Subject:
    made, columns = course(order.run(row, seed), lab.workspace), order.columns(row)
    exams = {}
    if made.finished and made.folder is not None:
        for column in columns:
            found = lab.examination(order, row, made.run, made.folder, column)
            if found is not None:
                exams[column.label] = Exam(*found)
    return Subject(row, made, exams, len(columns), order.setting(row.task).n(""))
