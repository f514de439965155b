"""What finished jobs show: one model under its attacks, and a cell of a table over several seeds."""

from __future__ import annotations

import math
import statistics
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atlas.config import fingerprint
from atlas.evaluation import Report, Score
from atlas.evaluation.compare import Paired, paired
from atlas.evaluation.flags import Flag, after
from atlas.evaluation.results import COLUMNS, AttackResult
from atlas.evaluation.score import ON_CLEAN, WORST_CASE, wilson
from atlas.reports.collect import origin
from atlas.reports.tables import Cell
from atlas.runs import Record, Run
from atlas_paper.jobs import Job
from atlas_paper.workspace import REMOVE, State, Workspace

TIME = "s/batch"
"""The column that holds seconds; all others are accuracies in percent."""
DERIVED = (ON_CLEAN, WORST_CASE, TIME)
"""Columns that are not attacks."""
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5% points of Student's t for 1, 2, ... degrees of freedom."""
MOST_SEEDS = len(T_95) + 1
NOTHING = "-"
"""The text of a cell without a number."""


@dataclass(frozen=True, eq=False)
class JobResult:
    """The training of a job, and its finished evaluations by label."""

    job: Job
    run: Run
    state: State
    reports: Mapping[str, Report]
    timing: Mapping[str, Any] | None = None
    """The seconds per training step, and the machine."""

    @classmethod
    def of(cls, job: Job, workspace: Workspace) -> JobResult:
        """Read all that is finished; nothing is run."""
        found = {spec.label: workspace.report(job.run, spec) for spec in job.attacks}
        reports = {label: report for label, report in found.items() if report is not None}
        return cls(job, *workspace.find(job.run), reports, workspace.timing(job.run))

    @cached_property
    def epochs(self) -> list[Record]:
        return self.run.epochs

    @property
    def best_epoch(self) -> int | None:
        """The last that was the best so far, from 0."""
        return max((e["epoch"] for e in self.epochs if e["best"]), default=None)

    @property
    def collapses(self) -> list[int]:
        """Epochs, from 0, in which a collapse was detected."""
        return [e["epoch"] for e in self.epochs if e["collapse"]]

    @property
    def lacks(self) -> str:
        """What is missing; "" where nothing is."""
        if self.state != "finished":
            after = f" after {len(self.epochs)} epochs" if self.epochs else ""
            return f"training {self.state}{after}{REMOVE.get(self.state, '')}"
        if len(self.reports) < len(self.job.attacks):
            return "attacks not finished"
        return "time per batch not measured" if self.job.timed_steps and self.timing is None else ""

    @property
    def marks(self) -> tuple[str, ...]:
        """What must be said beside its numbers."""
        if self.state == "failed":
            return ("failed",)
        marks: tuple[str, ...] = ("collapsed",) if self.collapses else ()
        if self.reports:
            report = self.reports[self._largest]
            most = float(torch.bincount(report.y).max()) / report.n
            if report.clean.interval[0] <= most:  # it may always predict the most frequent class
                marks += ("at chance",)
        return marks

    def plain(self) -> dict[str, Any]:
        """The training as JSON."""
        spec, best = self.job.run, self.best_epoch
        return {
            "seed": spec.seed,
            "config_hash": fingerprint(self.run.config) if self.state == "finished" else spec.hash,
            "train": spec.command,
            "state": self.state,
            "network": spec.config.model,
            "train_commit": origin(self.run.path).get("commit"),
            "train_seconds": round(self.run.seconds, 1),
            "epochs": len(self.epochs),
            "best_epoch": None if best is None else best + 1,
            "collapsed_in_epochs": [epoch + 1 for epoch in self.collapses],
        }

    @property
    def _largest(self) -> str:
        """The evaluation with most images; "" where there is none yet."""
        return max(self.reports, key=lambda label: self.reports[label].n, default="")

    @property
    def _many(self) -> dict[str, Report]:
        """All evaluations but those on few images."""
        few = {spec.label for spec in self.job.attacks if spec.few}
        return {label: report for label, report in self.reports.items() if label not in few}

    @property
    def worst_of(self) -> tuple[str, ...]:
        """The evaluations over which the worst case is taken, once all are finished."""
        return tuple(self._many) if len(self.reports) == len(self.job.attacks) else ()

    def right(self, column: str) -> tuple[Tensor, Tensor, Score] | None:
        """The ids of a column's images, which of them are right, and the score; None where there are none.

        The worst case is taken over the images that all have seen.
        """
        if column == ON_CLEAN and self.reports:
            report = self.reports[self._largest]
            return report.ids, report.clean_right, report.clean
        labels = self.worst_of if column == WORST_CASE else (column,) if column in self.reports else ()
        if not labels:
            return None
        report = joined([self.reports[label] for label in labels])
        return report.ids, report.robust, report.worst

    @cached_property
    def flags(self) -> list[Flag]:
        """Warnings: those of single evaluations, each once, and what the attacks show together.

        An evaluation on few images is judged beside those that saw as many: it takes no images from them.
        """
        reports = list(self.reports.values())
        # Those of the probes, and the fatal ones: the others are derived from all evaluations together.
        derived = [{flag.name for flag in after(list(report.results.values()))} for report in reports]
        flags = {
            flag.name: flag
            for report, names in zip(reports, derived, strict=True)
            for flag in report.flags
            if flag.fatal or flag.name not in names
        }
        together = [f for f in joined(list(self._many.values())).flags if not f.fatal] if self._many else []
        for few in (report for label, report in self.reports.items() if label not in self._many):
            own = tuple(f"{name} fools " for name in few.results)
            rivals = joined([report for report in reports if report.n >= few.n])
            together += [flag for flag in rivals.flags if flag.message.startswith(own)]
        return list(dict.fromkeys([*flags.values(), *together]))

    def about(self, column: str) -> dict[str, Any]:
        """The training and the evaluation behind a number, as JSON."""
        if column == WORST_CASE:
            return {**self.plain(), "worst_of": list(self.worst_of)}
        label = self._largest if column == ON_CLEAN else column
        report = self.reports[label]
        (spec,) = (spec for spec in self.job.attacks if spec.label == label)
        return {
            **self.plain(),
            "evaluate": spec.command,
            "evaluate_commit": origin(report.folder).get("commit") if report.folder else None,
            "attack_seconds": round(sum(report.seconds.values()), 1),
            "flags": [flag.name for flag in report.flags],
        }


def joined(reports: Sequence[Report]) -> Report:
    """Evaluations of one model as one, on the images that all of them saw."""
    ids = reduce(lambda a, b: a[torch.isin(a, b)], [report.ids for report in reports])
    results = dict[str, AttackResult]()
    for number, report in enumerate(reports):
        seen = torch.isin(report.ids, ids)
        for label, result in report.results.items():
            columns = {name: getattr(result, name)[seen] for name in COLUMNS}
            results[f"{number} {label}"] = replace(result, **columns)
    seen = torch.isin(reports[0].ids, ids)
    fatal = [flag for report in reports for flag in report.flags if flag.fatal]
    return replace(
        reports[0],
        ids=ids,
        y=reports[0].y[seen],
        clean_right=reports[0].clean_right[seen],
        results=results,
        flags=[*fatal, *after(list(results.values()))],
    )


def interval_of_mean(rates: Sequence[float], n: int) -> tuple[float, float]:
    """95% in percent for a mean over seeds: Wilson's, for other images, and Student's, for other seeds.

    They are combined as independent errors. All seeds see the same images, so their spread alone does not
    cover the choice of images.
    """
    percents, mean, half = [100 * rate for rate in rates], 100 * statistics.mean(rates), 0.0
    low, high = (100 * end for end in wilson(mean / 100, n))
    if len(percents) > 1:
        half = T_95[len(percents) - 2] * statistics.stdev(percents) / math.sqrt(len(percents))
    return max(0.0, mean - math.hypot(mean - low, half)), min(100.0, mean + math.hypot(high - mean, half))


@dataclass(frozen=True, eq=False)
class CellResult:
    """All that is known of one cell of a table: a column of one job per seed, and the paper's number."""

    column: str
    jobs: Sequence[JobResult] = ()
    paper: float | None = None

    @cached_property
    def right(self) -> dict[int, tuple[Tensor, Tensor, Score]]:
        """By seed: the ids of the images, which of them are right, and the score."""
        found = {each.job.run.seed: each.right(self.column) for each in self.jobs}
        return {seed: known for seed, known in found.items() if known is not None}

    @property
    def scores(self) -> dict[int, Score]:
        return {seed: score for seed, (_, _, score) in self.right.items()}

    @property
    def timing(self) -> Mapping[str, Any] | None:
        """Of the column of times: the seconds, and the machine."""
        return self.jobs[0].timing if self.column == TIME and self.jobs else None

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """What must be said beside the number."""
        if self.column == TIME:
            return ()
        marks = dict.fromkeys(mark for each in self.jobs for mark in each.marks)
        if 0 < len(self.right) < len(self.jobs):
            marks[f"{len(self.right)} of {len(self.jobs)} seeds"] = None
        return tuple(marks)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Fatal warnings, for which there is no number."""
        return tuple(dict.fromkeys(reason for score in self.scores.values() for reason in score.reasons))

    @property
    def ours(self) -> float | None:
        """In the paper's unit: percent, the mean over the seeds; or seconds."""
        if self.timing is not None:
            return float(self.timing["seconds"])
        if self.reasons or not self.scores:
            return None
        return 100 * statistics.mean(score.rate for score in self.scores.values())

    @property
    def interval(self) -> tuple[float, float] | None:
        if self.ours is None or self.n is None:
            return None
        return interval_of_mean([score.rate for score in self.scores.values()], self.n)

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

    def paired(self, other: CellResult) -> Iterator[tuple[int, Paired]]:
        """Compare two models on the same images, seed by seed, where both have valid results."""
        for seed in (seed for seed in self.right if seed in other.right):
            (ids, right, score), (other_ids, other_right, other_score) = self.right[seed], other.right[seed]
            if not score.reasons and not other_score.reasons:
                mine, theirs = torch.isin(ids, other_ids), torch.isin(other_ids, ids)
                yield seed, paired(right[mine], other_right[theirs])

    def cell(self) -> Cell:
        """Ours, as it is shown: what is invalid, failed or missing has no number."""
        if self.reasons:
            return Cell(f"invalid ({', '.join(self.reasons)})")
        if self.ours is None:
            return Cell("failed" if "failed" in self.marks else NOTHING)
        if self.column == TIME:
            return Cell.number(self.ours, "{:.3g}")
        return Cell(", ".join([f"{self.ours:.2f}", *self.marks]), self.ours, self.interval)

    def paper_cell(self) -> Cell:
        if self.paper is None:
            return Cell(NOTHING)
        return Cell.number(self.paper, "{:g}" if self.column == TIME else "{:.2f}")

    def difference_cell(self) -> Cell:
        return Cell(NOTHING) if self.difference is None else Cell.number(self.difference, "{:+.2f}")

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        found = {each.job.run.seed: each for each in self.jobs}
        return {
            "paper": self.paper,
            "ours": self.ours,
            "interval": None if self.interval is None else list(self.interval),
            "difference": self.difference,
            "status": self.status,
            "marks": list(self.marks),
            "reasons": list(self.reasons),
            "seeds": [{**self._plain(seed), **found[seed].about(self.column)} for seed in self.right],
            **({} if self.timing is None else {"timing": dict(self.timing)}),
        }

    def _plain(self, seed: int) -> dict[str, Any]:
        _, right, score = self.right[seed]
        numbers = score.plain()
        # A bit per image, so that two results can be tested as a pair.
        bits = b64encode(np.packbits(right.numpy()).tobytes()).decode()
        return {"k": numbers.pop("right", None), **numbers, "right": bits}
