"""Rows with verdicts and epochs that are made up, for tests that know what has to come out."""

from __future__ import annotations

from pathlib import Path

import torch

from atlas.evaluation import AttackResult, Report
from atlas_paper.artefact import Row
from atlas_paper.request import Run
from atlas_paper.results import Exam, Subject
from atlas_paper.run_status import RunStatus

CLEAN, SURVIVED = -1, -2


def exam(
    right: list[int],
    clean: list[int],
    ids: list[int] | None = None,
    white_box: bool = True,
    name: str = "attack",
) -> Exam:
    """One attack on some images: which are right after it, and which were before."""
    n = len(right)
    before, after = torch.tensor(clean).bool(), torch.tensor(right).bool()
    attempt = torch.where(before, torch.where(after, SURVIVED, 0), CLEAN)
    step, queries = torch.zeros(n, dtype=torch.int64), torch.ones(n, dtype=torch.int64)
    result = AttackResult(name, {}, white_box, 5, 1, attempt, step, torch.zeros(n), queries)
    numbers = torch.tensor(ids if ids is not None else range(n))
    report = Report({}, numbers, numbers % 2, before, {name: result}, [], {name: 1.0})
    return Exam(Path("nowhere"), report)


def subject(exams: dict[str, Exam], usual: int | None = None, expected: int | None = None) -> Subject:
    run = Run("mnist-small-adv-1", {}, 0)
    course = RunStatus(run, "finished", None, (), 0.0)
    return Subject(Row("mnist", "adv-1"), course, exams, expected or len(exams), usual)
