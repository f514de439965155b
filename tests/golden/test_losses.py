"""The losses of the first steps of every method, as they were when they were last meant to change.

A change that should not alter numerics leaves `losses.json` as it is. One that should, writes it anew with
``python tests/golden/test_losses.py`` and says why in its commit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from atlas import data, models
from atlas.attacks import PGD
from atlas.methods import METHODS, Method
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

STORED = Path(__file__).with_name("losses.json")
STEPS = 4
CASES: dict[str, tuple[str, dict[str, Any], Threat]] = {
    "natural": ("natural", {}, Linf(0.3)),
    "jac": ("jac", {"alpha": 0.01}, Linf(0.3)),
    "adv-1": ("adv", {}, Linf(0.3)),
    "trades-1": ("trades", {"beta": 1.0}, Linf(0.3)),
    "atlas-1": ("atlas", {"alpha": 1e-3, "beta": 0.3}, Linf(0.3)),
    "atlas_l-1": ("atlas_l", {"alpha": 1e-3}, Linf(0.3)),
    "atlas_g-1": ("atlas_g", {"beta": 0.3}, Linf(0.3)),
    "trades_jac-1": ("trades_jac", {}, Linf(0.3)),
    "adv-5": ("adv", {"attack": PGD(steps=5)}, Linf(0.3)),
    "atlas-5-l2": ("atlas", {"alpha": 1e-3, "beta": 0.3, "attack": PGD(steps=5)}, L2(2.0)),
}


def losses(method: Method, threat: Threat) -> list[float]:
    model = models.build("cnn-small")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    todo = data.batches(data.load("mnist-mini"), 64, seed=0, epoch=0)
    for step, (ids, x, y) in zip(range(STEPS), todo, strict=False):
        loss = method.loss(model, x, y, threat=threat, rng=Rng.lanes(0, ids).fold(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


def every_case() -> dict[str, list[float]]:
    return {
        name: losses(METHODS[method](**values), threat) for name, (method, values, threat) in CASES.items()
    }


def test_every_method_has_a_case() -> None:
    assert {method for method, _, _ in CASES.values()} == set(METHODS)


@pytest.mark.parametrize("name", CASES)
def test_losses_are_as_stored(name: str) -> None:
    method, values, threat = CASES[name]
    # Not to the bit: another processor sums in another order, and a sign step can flip on a tiny gradient.
    assert losses(METHODS[method](**values), threat) == pytest.approx(
        json.loads(STORED.read_text())[name], rel=1e-4
    )


if __name__ == "__main__":
    STORED.write_text(json.dumps(every_case(), indent=1) + "\n")
