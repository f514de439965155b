"""The paper's two propositions on random ReLU networks, in float64 (App. A.1, A.2 and A.4).

Networks, points and radii come from hypothesis; the local affine map f(x) = W^x x + b^x comes from
`torch.func.jacrev`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import jacrev

from atlas.objectives import logits_and_squared_jacobian, margin
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

seeds = st.integers(0, 2**32 - 1)
hidden = st.lists(st.integers(1, 12), min_size=1, max_size=3)
gains = st.floats(0.1, 10)
thorough = settings(max_examples=150, deadline=None, derandomize=True)


def affine(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """W^x [C, N] and b^x [C] at one point x [N]."""
    W = jacrev(lambda point: model(point[None])[0])(x).detach()
    return W, (model(x[None])[0] - W @ x).detach()


def norm_of_both(W: Tensor, b: Tensor) -> float:
    """||[W | b]||_F."""
    return math.sqrt(W.square().sum().item() + b.square().sum().item())


def with_one(x: Tensor) -> Tensor:
    """The paper's x with a 1 appended."""
    return torch.cat([x, torch.ones(1, dtype=x.dtype)])


def first_order_distance(model: nn.Module, x: Tensor, c: int) -> float:
    """Eq. (4), least over the other classes: |f_c - f_c'| / ||grad f_c - grad f_c'||_2."""
    f = model(x[None])[0].detach()
    W, _ = affine(model, x)
    others = [i for i in range(len(f)) if i != c]
    gaps = [(f[c] - f[i]).abs().item() for i in others]
    slopes = [(W[c] - W[i]).norm().item() for i in others]
    return min(gap / slope if slope else math.inf for gap, slope in zip(gaps, slopes, strict=True))


def proposition_1_bound(model: nn.Module, x: Tensor, c: int) -> float:
    """The right-hand side of Eq. (5), from the quantities that training uses."""
    logits, jac = logits_and_squared_jacobian(model, x[None], Rng.batch(1), "exact")
    least_gap = -margin(logits, torch.tensor([c])).item()
    return least_gap / math.sqrt(2 * jac.item()) if jac.item() else math.inf


@thorough
@given(seed=seeds, hidden=hidden, classes=st.integers(2, 6), size=st.integers(1, 20), gain=gains)
def test_proposition_1(
    relu_net: Callable[..., Any], seed: int, hidden: list[int], classes: int, size: int, gain: float
) -> None:
    """Eq. (5): the first-order distance to the boundary is at least min |f_c - f_c'| / (sqrt 2 ||J||_F)."""
    model = relu_net(seed, (size, *hidden, classes), gain).torch_module()
    x = torch.from_numpy(np.random.default_rng(seed).random(size))
    c = int(model(x[None]).argmax())
    distance = first_order_distance(model, x, c)
    bound = proposition_1_bound(model, x, c)
    assert bound >= 0
    assert distance >= bound * (1 - 1e-9) or (distance == math.inf)


@thorough
@given(seed=seeds, size=st.integers(1, 20), gain=gains)
def test_proposition_1_is_tight(relu_net: Callable[..., Any], seed: int, size: int, gain: float) -> None:
    """For f = (g, -g) both sides are |g| / ||grad g||: no smaller constant than sqrt 2 would do."""
    net = relu_net(seed, (size, 6, 1), gain)
    mirror = nn.Linear(1, 2, bias=False, dtype=torch.float64)
    mirror.weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
    model = nn.Sequential(net.torch_module(), mirror)
    x = torch.from_numpy(np.random.default_rng(seed).random(size))
    c = int(model(x[None]).argmax())
    assert math.isclose(
        first_order_distance(model, x, c), proposition_1_bound(model, x, c), rel_tol=1e-9, abs_tol=1e-12
    )


def two_points(threat: Threat, x: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Two points of the ball, often on its surface, where the segment between them is long."""
    points = []
    for _ in range(2):
        direction = rng.normal(size=len(x))
        size = np.abs(direction).max() if isinstance(threat, Linf) else np.linalg.norm(direction)
        points.append(x + torch.from_numpy(direction / size * threat.eps * rng.choice([1, rng.random()])))
    return points[0], points[1]


def proposition_2_sides(model: nn.Module, x1: Tensor, x2: Tensor, eta: float) -> tuple[float, float, float]:
    """d W x_eta, the mean of d W x at x1 and x2, and u L."""
    points = [x1, x2, eta * x1 + (1 - eta) * x2]
    maps = [affine(model, point) for point in points]
    s = [
        (W @ point + b) @ torch.tensor([1.0, -1.0]).double()
        for (W, b), point in zip(maps, points, strict=True)
    ]
    u = max(norm_of_both(W, b) for W, b in maps)
    x1_, x2_, middle = map(with_one, points)
    L = math.sqrt(2) * (2 * middle.norm().item() + 0.5 * (x1_ - x2_).norm().item())
    return s[2].item(), (s[0].item() + s[1].item()) / 2, u * L


@thorough
@given(
    seed=seeds,
    hidden=hidden,
    size=st.integers(1, 12),
    gain=gains,
    threat=st.builds(lambda kind, eps: kind(eps), st.sampled_from([Linf, L2]), st.floats(0.001, 1)),
    eta=st.floats(0, 1),
)
def test_proposition_2(
    relu_net: Callable[..., Any],
    seed: int,
    hidden: list[int],
    size: int,
    gain: float,
    threat: Threat,
    eta: float,
) -> None:
    """Eq. (8): d W^eta x_eta >= (d W^1 x1 + d W^2 x2) / 2 - u L between two points of the ball.

    The proposition takes u over the whole ball; its proof (A.4) needs the norm only at x1, x2 and x_eta,
    so the largest of these three stands for u here, which makes the inequality the strongest that the
    proof gives.
    """
    model = relu_net(seed, (size, *hidden, 2), gain).torch_module()
    rng = np.random.default_rng(seed)
    x1, x2 = two_points(threat, torch.from_numpy(rng.random(size)), rng)
    between, mean, slack = proposition_2_sides(model, x1, x2, eta)
    assert between >= mean - slack - 1e-9 * slack


def test_proposition_2_needs_its_slack(relu_net: Callable[..., Any]) -> None:
    """Without u L it is false for many networks: the property above is no triviality of the set-up."""
    falls = 0
    for seed in range(40):
        model = relu_net(seed, (4, 8, 2), 5.0).torch_module()
        rng = np.random.default_rng(seed)
        x1, x2 = two_points(Linf(0.8), torch.from_numpy(rng.random(4)), rng)
        between, mean, _ = proposition_2_sides(model, x1, x2, 0.5)
        falls += between < mean - 1e-6
    assert falls > 5


@thorough
@given(seed=seeds, hidden=hidden, size=st.integers(1, 12), gain=gains)
def test_the_local_map_is_the_network(
    relu_net: Callable[..., Any], seed: int, hidden: list[int], size: int, gain: float
) -> None:
    """W^x from jacrev is the product of the active rows, in numpy."""
    net = relu_net(seed, (size, *hidden, 3), gain)
    x = np.random.default_rng(seed).random(size)
    W, b = affine(net.torch_module(), torch.from_numpy(x))
    logits, jacobian = net.forward(x)
    np.testing.assert_allclose(W, jacobian, rtol=1e-9, atol=1e-9 * gain ** len(hidden))
    np.testing.assert_allclose(W.numpy() @ x + b.numpy(), logits, rtol=1e-9, atol=1e-9 * gain ** len(hidden))
