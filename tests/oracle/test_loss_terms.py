"""Every term and the whole loss of every method, against the paper's equations in plain numpy, float64.

The oracle writes out softmax, cross-entropy, KL, the Jacobian and the FGSM step; it shares with the code
under test only the random numbers, which have tests of their own. Gradients are compared with central
differences of the oracle, so that a detached argument or a forgotten factor is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from atlas.attacks import FGSM, PGD
from atlas.methods import (
    METHODS,
    Adv,
    Atlas,
    Jac,
    Method,
    Natural,
    Trades,
    TradesJac,
    TrainingStep,
    atlas_g,
    atlas_l,
)
from atlas.rng import Rng
from atlas.threat import Linf

Array = NDArray[np.float64]
EPS = 0.2
STEP = TrainingStep(Linf(EPS), Rng.batch(6))
SIZES = (12, 9, 7, 4)


def log_softmax(z: Array) -> Array:
    shifted = z - z.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def ce(z: Array, y: Array) -> Array:
    return -log_softmax(z)[np.arange(len(y)), y]


def kl(zp: Array, zq: Array) -> Array:
    """KL(p || q)."""
    log_p, log_q = log_softmax(zp), log_softmax(zq)
    return (np.exp(log_p) * (log_p - log_q)).sum(1)


def jac(net: Any, x: Array) -> Array:
    return (net.jacobian(x) ** 2).sum((1, 2))


class Row(NamedTuple):
    """A method and its equation: the terms at (net, x, x', y), and their weights."""

    method: Method
    terms: Callable[[Any, Array, Array, Array], dict[str, Array]]
    weights: dict[str, float]


ROWS = {
    "natural": Row(Natural(), lambda f, x, a, y: {"ce": ce(f.logits(x), y)}, {}),
    "jac": Row(
        Jac(alpha=0.5, projections="exact"),
        lambda f, x, a, y: {"ce": ce(f.logits(x), y), "jac": jac(f, x)},
        {"jac": 0.5},
    ),
    "adv": Row(Adv(), lambda f, x, a, y: {"ce": ce(f.logits(a), y)}, {}),
    "trades": Row(
        Trades(beta=2.0),
        lambda f, x, a, y: {"ce": ce(f.logits(x), y), "kl": kl(f.logits(x), f.logits(a))},
        {"kl": 2.0},
    ),
    "atlas": Row(
        Atlas(alpha=0.03, beta=5.0, projections="exact"),
        lambda f, x, a, y: {
            "ce": ce(f.logits(a), y),
            "jac": jac(f, a),
            "kl": kl(f.logits(a), f.logits(x)),
        },
        {"jac": 0.03, "kl": 5.0},
    ),
    "atlas_l": Row(
        atlas_l(alpha=0.03, projections="exact"),
        lambda f, x, a, y: {"ce": ce(f.logits(a), y), "jac": jac(f, a)},
        {"jac": 0.03},
    ),
    "atlas_g": Row(
        atlas_g(beta=5.0),
        lambda f, x, a, y: {"ce": ce(f.logits(a), y), "kl": kl(f.logits(a), f.logits(x))},
        {"kl": 5.0},
    ),
    "trades_jac": Row(
        TradesJac(alpha=0.02, beta=0.5, projections="exact"),
        lambda f, x, a, y: {
            "ce": ce(f.logits(x), y),
            "jac": jac(f, x),
            "kl": kl(f.logits(x), f.logits(a)),
        },
        {"jac": 0.02, "kl": 0.5},
    ),
}
ATTACKED = {name: row for name, row in ROWS.items() if row.method.attack is not None}
each_method = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())


def batch(seed: int, size: int = 6, classes: int = SIZES[-1]) -> tuple[Array, Array, Array]:
    """x in the box, some x' near it, labels."""
    rng = np.random.default_rng(seed)
    x = rng.random((size, 1, 3, 4))
    return x, np.clip(x + rng.uniform(-EPS, EPS, x.shape), 0, 1), rng.integers(classes, size=size)


def total(row: Row, net: Any, x: Array, x_adv: Array, y: Array, ramp: float) -> float:
    """The paper's loss: the mean over the batch of CE + ramp * (alpha * jac + beta * kl)."""
    terms = row.terms(net, x, x_adv, y)
    weighed = sum(ramp * w * terms[name] for name, w in row.weights.items())
    return float(np.mean(terms["ce"] + weighed))


def tensors(*arrays: Array) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def test_every_registered_method_has_an_equation() -> None:
    assert set(ROWS) == set(METHODS)


@each_method
@pytest.mark.parametrize("seed", range(3))
def test_terms(row: Row, seed: int, relu_net: Callable[..., Any]) -> None:
    net, (x, x_adv, y) = relu_net(seed, SIZES), batch(seed)
    got = row.method.terms(net.torch_module(), *tensors(x, x_adv, y), STEP)
    wanted = row.terms(net, x, x_adv, y)
    assert list(got.losses) == list(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(got.losses[name].detach().numpy(), values, rtol=1e-10, atol=1e-12)


@each_method
@pytest.mark.parametrize("ramp", [0.0, 0.37, 1.0])
def test_total_with_the_ramp(row: Row, ramp: float, relu_net: Callable[..., Any]) -> None:
    net, (x, x_adv, y) = relu_net(3, SIZES), batch(3)
    losses, _ = row.method.terms(net.torch_module(), *tensors(x, x_adv, y), STEP)
    assert row.method.weigh(losses, ramp).item() == pytest.approx(
        total(row, net, x, x_adv, y, ramp), rel=1e-11
    )


@each_method
def test_gradient_of_the_total_by_central_differences(row: Row, relu_net: Callable[..., Any]) -> None:
    net, (x, x_adv, y) = relu_net(4, (12, 5, 4)), batch(4)
    model = net.torch_module()
    losses, _ = row.method.terms(model, *tensors(x, x_adv, y), STEP)
    row.method.weigh(losses, 0.7).backward()
    got = np.concatenate([p.grad.numpy().reshape(-1) for p in model.parameters() if p.grad is not None])
    at, h = net.flat(), 1e-6
    wanted = np.empty_like(at)
    for i in range(len(at)):
        moved = np.zeros_like(at)
        moved[i] = h
        up, down = (total(row, net.with_flat(at + s * moved), x, x_adv, y, 0.7) for s in (1, -1))
        wanted[i] = (up - down) / (2 * h)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)


def input_gradient(net: Any, objective: str, at: Array, x: Array, y: Array) -> Array:
    """d objective / d x' at x' = `at`, by the chain rule: J^T (p' - target)."""
    p_adv = np.exp(log_softmax(net.logits(at)))
    target = np.eye(p_adv.shape[1])[y] if objective == "ce" else np.exp(log_softmax(net.logits(x)))
    return np.einsum("bcn,bc->bn", net.jacobian(at), p_adv - target).reshape(at.shape)


@each_method
@pytest.mark.parametrize("clip_start", [True, False])
def test_whole_one_step_loss(row: Row, clip_start: bool, relu_net: Callable[..., Any]) -> None:
    """craft, terms and weigh together: `loss` is the number that the equations give by hand."""
    net, (x, _, y) = relu_net(5, SIZES), batch(5)
    method, rng, ramp = row.method, Rng.batch(len(y), seed=9), 0.6
    if method.attack is not None:
        attack = FGSM(relative_step=1.25, objective=method.objective, clip_start=clip_start)
        method = replace(method, attack=attack)
    got = method.loss(net.torch_module(), *tensors(x, y), threat=Linf(EPS), rng=rng, ramp=ramp)

    noise = rng.fold("attack").fold("restart", 0).uniform(x.shape[1:], -EPS, EPS, torch.float64).numpy()
    start = np.clip(x + noise, 0, 1) if clip_start else x + noise
    step = 1.25 * EPS * np.sign(input_gradient(net, method.objective, start, x, y))
    x_adv = np.clip(np.clip(start + step, x - EPS, x + EPS), 0, 1)
    assert got.item() == pytest.approx(total(row, net, x, x_adv, y, ramp), rel=1e-10)


@pytest.mark.parametrize("row", ATTACKED.values(), ids=ATTACKED.keys())
def test_whole_multi_step_loss(row: Row, relu_net: Callable[..., Any]) -> None:
    net, (x, _, y) = relu_net(6, SIZES), batch(6)
    objective = row.method.objective
    attack = PGD(steps=4, step_size=0.07, objective=objective)
    method = replace(row.method, attack=attack)
    rng = Rng.batch(len(y), seed=2)
    got = method.loss(net.torch_module(), *tensors(x, y), threat=Linf(EPS), rng=rng)

    noise = rng.fold("attack").fold("restart", 0).uniform(x.shape[1:], -EPS, EPS, torch.float64).numpy()
    x_adv = np.clip(x + noise, 0, 1)
    for _ in range(4):
        x_adv = x_adv + 0.07 * np.sign(input_gradient(net, objective, x_adv, x, y))
        x_adv = np.clip(np.clip(x_adv, x - EPS, x + EPS), 0, 1)
    assert got.item() == pytest.approx(total(row, net, x, x_adv, y, 1.0), rel=1e-10)


# KL((0.9, 0.1) || (0.5, 0.5)) and its reverse, by hand.
FORWARD = 0.9 * np.log(0.9 / 0.5) + 0.1 * np.log(0.1 / 0.5)
REVERSE = 0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1)


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        (Atlas(alpha=0.0, beta=1.0), FORWARD),
        (Atlas(alpha=0.1, beta=1.0), FORWARD),
        (atlas_g(beta=1.0), FORWARD),
        (Trades(beta=1.0), REVERSE),
        (TradesJac(alpha=0.1, beta=1.0), REVERSE),
    ],
    ids=str,
)
def test_kl_direction(method: Method, wanted: float) -> None:
    """p(x') = (0.9, 0.1) and p(x) = (0.5, 0.5): ATLAS has KL(p(x') || p(x)), TRADES the reverse."""
    x_adv, x = tensors(np.log([[0.9, 0.1]]), np.log([[0.5, 0.5]]))
    losses, _ = method.terms(
        lambda pixels: pixels + 3.0, x, x_adv, torch.tensor([0]), TrainingStep(Linf(EPS), Rng.batch(1))
    )
    assert losses["kl"].item() == pytest.approx(wanted, rel=1e-12)
    assert abs(FORWARD - REVERSE) > 0.1


@each_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_finite(row: Row, dtype: torch.dtype) -> None:
    """Logits of +-1e4 that disagree between x and x': probabilities underflow, values and gradients stand."""
    x, x_adv = torch.zeros(3, 2, dtype=dtype), torch.ones(3, 2, dtype=dtype)
    scale = torch.tensor([[1e4, -1e4, 0.0], [-2e4, 2e4, 1.0]], dtype=dtype, requires_grad=True)
    shift = torch.tensor([-1e4, 1e4, 0.0], dtype=dtype, requires_grad=True)
    losses, _ = row.method.terms(
        lambda pixels: pixels @ scale + shift,
        x,
        x_adv,
        torch.tensor([0, 1, 2]),
        TrainingStep(Linf(EPS), Rng.batch(3)),
    )
    assert all(values.isfinite().all() for values in losses.values())
    row.method.weigh(losses).backward()
    assert shift.grad is not None
    assert scale.grad is not None
    assert shift.grad.isfinite().all()
    assert scale.grad.isfinite().all()
    assert shift.grad.abs().sum() > 0
