"""APGD on linear models, whose worst case in ball and box has a closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from atlas.attacks import APGD, NewAttempts, TargetedAPGD, engine
from atlas.attacks.apgd import AutoPGD
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat
from tests.oracle.test_linear_worst_case import (
    EXAMPLES,
    SHAPE,
    Array,
    Problem,
    problem,
    worst,
    worst_l2,
    worst_linf,
)

ATTACKS: list[AutoPGD] = [APGD("ce"), APGD("dlr"), TargetedAPGD(), APGD("ce", steps=200)]
each_attack = pytest.mark.parametrize("attack", ATTACKS, ids=str)
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def best_points(attack: AutoPGD, p: Problem, threat: Threat) -> Tensor:
    """The point with the highest loss of one attempt."""
    state = attack.start(p, NewAttempts(p.x, p.y, Rng.batch(EXAMPLES), torch.zeros_like(p.y)), threat)
    for _ in range(attack.steps):
        state = attack.advance(p, state, threat).state
    return state.x_best


@each_attack
@each_dtype
@pytest.mark.parametrize("eps", [0.05, 0.3])
def test_linf(attack: AutoPGD, eps: float, dtype: torch.dtype) -> None:
    p = problem(dtype)
    gain = p.gain(best_points(attack, p, Linf(eps)))
    np.testing.assert_allclose(gain, worst_linf(p, eps), atol=1e-4 if dtype == torch.float32 else 1e-6)


@each_attack
@each_dtype
def test_l2_inside_the_box(attack: AutoPGD, dtype: torch.dtype) -> None:
    """eps times the dual norm."""
    p, eps = problem(dtype, 0.4, 0.6), 0.35
    gain = p.gain(best_points(attack, p, L2(eps)))
    np.testing.assert_allclose(gain, eps * np.linalg.norm(p.slopes, axis=1), atol=1e-4)


@each_attack
@each_dtype
def test_l2_in_an_active_box(attack: AutoPGD, dtype: torch.dtype) -> None:
    p, eps = problem(dtype), 0.25
    gain = p.gain(best_points(attack, p, L2(eps)))
    np.testing.assert_allclose(gain, worst_l2(p, eps), atol=1e-4)


def several_classes(classes: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W, b, images, and the classes that the model gives them."""
    rng = np.random.default_rng(7)
    W = torch.tensor(rng.normal(size=(classes, 16)))
    b = -W.sum(1) / 2
    x = torch.tensor(np.clip(rng.uniform(-0.2, 1.2, (count, *SHAPE)), 0, 1))
    return W, b, x, (x.flatten(1) @ W.T + b).argmax(1)


def highest_margins(W: Tensor, b: Tensor, x: Tensor, y: Tensor, threat: Threat) -> Array:
    """max over the wrong classes i of the worst case of f_i - f_y, pair of classes by pair, [N]."""
    highest = np.full(len(x), -np.inf)
    for label in range(len(b)):
        which = (y == label).nonzero()[:, 0]
        for i in set(range(len(b))) - {label}:
            pair = Problem(x[which], torch.zeros(len(which)), W[[label, i]], b[[label, i]])
            f = pair(pair.x).numpy()
            highest[which] = np.maximum(highest[which], f[:, 1] - f[:, 0] + worst(pair, threat))
    return highest


@pytest.mark.parametrize("threat", [Linf(0.07), L2(0.25)], ids=str)
def test_verdicts_among_several_classes_are_certificates(threat: Threat) -> None:
    """The targeted attack calls an example robust exactly where no class can be reached in ball and box."""
    W, b, x, y = several_classes(classes=6, count=150)
    highest = highest_margins(W, b, x, y, threat)
    outcome = engine.run(TargetedAPGD(), lambda p: p.flatten(1) @ W.T + b, x, y, threat, Rng.batch(150))
    assert 30 < (highest < 0).sum() < 120, "both verdicts are to occur"
    sure = np.abs(highest) > 1e-4
    assert (outcome.robust.numpy() == (highest < 0))[sure].all()
