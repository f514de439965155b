"""Made-up evaluations and results, for tests that know the expected outcome."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from atlas.evaluation import AttackResult, Report
from atlas.runs import Run
from atlas_paper.cells import JobResult
from atlas_paper.jobs import AttackSpec, Job, RunSpec

CLEAN, SURVIVED = -1, -2


def report(
    right: list[int],
    clean: list[int],
    ids: list[int] | None = None,
    white_box: bool = True,
    name: str = "attack",
) -> Report:
    """One attack on some images: which are right after it, and which were before."""
    n = len(right)
    before, after = torch.tensor(clean).bool(), torch.tensor(right).bool()
    attempt = torch.where(before, torch.where(after, SURVIVED, 0), CLEAN)
    step, queries = torch.zeros(n, dtype=torch.int64), torch.ones(n, dtype=torch.int64)
    result = AttackResult(name, {}, white_box, 5, 1, attempt, step, torch.zeros(n), queries)
    numbers = torch.tensor(ids if ids is not None else range(n))
    return Report({}, numbers, numbers % 2, before, {name: result}, [], {name: 1.0})


def result(
    reports: Mapping[str, Report], few: tuple[str, ...] = (), more: tuple[str, ...] = (), seed: int = 0
) -> JobResult:
    """A finished training with these evaluations; those of `more` are still to be made."""
    specs = [AttackSpec(label, "paper", {}, None, few=label in few) for label in (*reports, *more)]
    job = Job("by hand", RunSpec("mnist-small-adv-1", {}, seed), tuple(specs))
    return JobResult(job, Run(Path("nothing here")), "finished", reports)
