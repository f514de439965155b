"""Rows with made-up results, for tests that know the expected outcome."""

from __future__ import annotations

import torch

from atlas.evaluation import AttackResult, Report
from atlas_paper.request import RunSpec
from atlas_paper.results import SeedResult
from atlas_paper.workspace import RunStatus

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


def result(reports: dict[str, Report], usual: int | None = None, expected: int | None = None) -> SeedResult:
    status = RunStatus(RunSpec("mnist-small-adv-1", {}, 0), "finished")
    return SeedResult(status, reports, expected or len(reports), usual)
