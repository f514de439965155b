"""Which images a model gets right, column by column."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from atlas.evaluation import Report, Score
from atlas.evaluation.flags import Flag, Record, after
from atlas.report.comparison import CLEAN, WORST
from atlas.reproduce.artefact import Row
from atlas.reproduce.course import Course


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
    course: Course
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
