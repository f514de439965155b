"""Scores: Wilson's interval against its definition, and a count that is right."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from atlas.attacks import PGD
from atlas.data import as_images
from atlas.evaluation import Score, score
from atlas.threat import Linf


@pytest.mark.parametrize(("right", "n"), [(0, 10), (10, 10), (1, 7), (923, 1000), (5000, 10000)])
def test_the_interval_holds_the_rates_that_the_sample_does_not_reject(right: int, n: int) -> None:
    """Its ends q solve |p - q| = z sqrt(q (1 - q) / n): found here by bisection."""
    p, z = right / n, 1.959963984540054

    def rejected(q: float) -> bool:
        return abs(p - q) > z * math.sqrt(q * (1 - q) / n)

    for end, edge in zip(Score(right, n).interval, (0.0, 1.0), strict=True):
        inside, outside = p, edge
        for _ in range(80):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if rejected(middle) else (middle, outside)
        assert end == pytest.approx(inside, abs=1e-9)


def test_scores_read_as_people_write_them() -> None:
    assert str(Score(923, 1000)) == "92.3% [90.5, 93.8]"


def test_robust_accuracy_of_a_linear_model_is_what_its_margins_say() -> None:
    x = torch.linspace(0.2, 0.8, 40).view(40, 1, 1, 1)
    y = (x.flatten() > 0.5).long()
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[-1.0], [1.0]]))
        model[1].bias.copy_(torch.tensor([0.52, -0.52]))  # the boundary is at 0.52: some are wrong at once
    clean, robust = score(model, as_images((x, y)), PGD(steps=10, restarts=2), Linf(0.1))
    distance = (x.flatten() - 0.52) * (2 * y - 1)
    assert clean.right == int((distance > 0).sum())
    assert robust.right == int((distance > 0.1).sum())
    assert clean.n == robust.n == 40
