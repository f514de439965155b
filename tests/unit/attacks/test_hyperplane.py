"""Shortest steps onto a hyperplane inside the box, against exhaustive search and optimality conditions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from atlas.attacks import fab
from atlas.attacks.fab import shortest_steps
from atlas.threat import L2, Linf, Threat

Array = NDArray[np.float64]
each_threat = pytest.mark.parametrize("threat", [Linf(0.1), L2(0.5)], ids=str)
SEED = 5


def problem(lanes: int, size: int, reach: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Points [B, 2, N], many on the edges of the box, w [B, N] with zeros, gaps to be closed in the box."""
    rng = np.random.default_rng(SEED)
    points = np.clip(rng.uniform(-0.4, 1.4, (lanes, 2, size)), 0, 1)
    w = (
        rng.normal(size=(lanes, size))
        * 10.0 ** rng.uniform(-2, 2, (lanes, 1))
        * (rng.random((lanes, size)) > 0.1)
    )
    sign = rng.choice([-1, 1], (lanes, 2))
    up = sign[..., None] * w[:, None] > 0
    farthest = (np.abs(w)[:, None] * np.abs(up - points)).sum(2)
    gap = sign * farthest * rng.uniform(0, reach, (lanes, 2))
    return torch.tensor(points), torch.tensor(w), torch.tensor(gap)


def length(d: Array, threat: Threat) -> float:
    return float(np.abs(d).max() if isinstance(threat, Linf) else np.linalg.norm(d))


def exhaustive(point: Array, w: Array, gap: float, threat: Threat) -> float:
    """The length of the shortest step: every choice of which pixels are stopped by the box, the rest free.

    Free pixels share one size (L-inf) or are in proportion to w (L2), as Hoelder's inequality asks.
    """
    sign = np.sign(gap) * np.sign(w)
    space = np.abs((sign > 0) - point) * np.abs(sign)
    best = np.inf
    for stopped in product([False, True], repeat=len(w)):
        at_edge = np.array(stopped)
        pattern = np.where(at_edge, 0, np.abs(sign) if isinstance(threat, Linf) else np.abs(w))
        left = abs(gap) - (np.abs(w) * space)[at_edge].sum()
        weight = (np.abs(w) * pattern).sum()
        size = left / weight if weight else 0.0
        d = np.where(at_edge, space, size * pattern)
        if size >= 0 and (d <= space + 1e-12).all() and np.isclose(np.abs(w) @ d, abs(gap), atol=1e-9):
            best = min(best, length(d, threat))
    return best


@each_threat
def test_no_choice_of_stopped_pixels_is_shorter(threat: Threat) -> None:
    points, w, gap = problem(30, 7)
    d, lengths = shortest_steps(threat, points, w, gap)
    for b, k in product(range(30), range(2)):
        best = exhaustive(points[b, k].numpy(), w[b].numpy(), gap[b, k].item(), threat)
        assert lengths[b, k].item() == pytest.approx(best, rel=1e-9)
        assert lengths[b, k].item() == pytest.approx(length(d[b, k].numpy(), threat), rel=1e-12)


@each_threat
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_large_steps_are_exact_and_optimal(threat: Threat, dtype: torch.dtype) -> None:
    """The gap is closed inside the box, and d_i = min(size |w_i|, room_i), for L-inf min(size, room_i), along
    the sign of gap w_i: that is sufficient, because the problem is convex."""
    inputs = [part.to(dtype) for part in problem(40, 3000, reach=0.98)]
    before = [part.clone() for part in inputs]
    d, lengths = shortest_steps(threat, *inputs)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))
    assert (d.dtype, lengths.dtype) == (dtype, dtype)
    unit = 1e-13 if dtype is torch.float64 else 1e-6
    points, w, gap, step = (part.double().numpy() for part in (*inputs, d))
    np.testing.assert_allclose(np.einsum("bn,bkn->bk", w, step), gap, rtol=30 * unit)
    forward = step * np.sign(gap)[..., None] * np.sign(w)[:, None]
    space = np.abs((gap[..., None] * w[:, None] > 0) - points)
    pattern = np.abs(np.sign(w) if isinstance(threat, Linf) else w)[:, None]
    free = (forward < space * (1 - 10 * unit)) & (pattern > 0)
    size = np.nanmedian(np.where(free, forward / np.maximum(pattern, 1e-300), np.nan), axis=2, keepdims=True)
    np.testing.assert_allclose(forward, np.minimum(size * pattern, space), atol=30 * unit)
    stopped = ~free & (pattern > 0)
    assert (free.any(2) & stopped.any(2)).all(), "the box is to stop some pixels, not all"


def test_linf_by_linear_programming() -> None:
    """min t with w.d = gap, -t <= d <= t and the point in the box."""
    optimize = pytest.importorskip("scipy.optimize")
    points, w, gap = problem(6, 60)
    _, lengths = shortest_steps(Linf(0.1), points, w, gap)
    for b, k in product(range(6), range(2)):
        point, row = points[b, k].numpy(), w[b].numpy()
        ends = np.block([[np.eye(60), -np.ones((60, 1))], [-np.eye(60), -np.ones((60, 1))]])
        bounds = [*zip(-point, 1 - point, strict=True), (0, None)]
        found = optimize.linprog(
            np.append(np.zeros(60), 1), ends, np.zeros(120), np.append(row, 0)[None], gap[b, k].item(), bounds
        )
        assert lengths[b, k].item() == pytest.approx(found.fun, rel=1e-7)


@each_threat
def test_out_of_reach_leads_to_the_nearest_corner(threat: Threat) -> None:
    points, w, gap = problem(12, 20)
    d, _ = shortest_steps(threat, points, w, gap.sign() * 1e4 * w.abs().sum(1, keepdim=True))
    corner = ((gap.sign()[..., None] * w[:, None]) > 0).double()
    wanted = torch.where(w[:, None] == 0, points, corner)
    torch.testing.assert_close(points + d, wanted, rtol=0, atol=1e-12)


@each_threat
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_nothing_to_do(threat: Threat, dtype: torch.dtype) -> None:
    """No gap, or a gradient that is 0 everywhere: the points stay, and nothing is NaN."""
    points, w, gap = (part.to(dtype) for part in problem(5, 20))
    for still in (shortest_steps(threat, points, w, gap * 0), shortest_steps(threat, points, w * 0, gap)):
        assert all((part == 0).all() for part in still)


@each_threat
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e15])
def test_the_scale_of_the_gradient_does_not_matter(threat: Threat, scale: float) -> None:
    """In float32, whose squares end at 1e38."""
    points, w, gap = (part.float() for part in problem(10, 50, reach=0.9))
    d, _ = shortest_steps(threat, points, w, gap)
    scaled, _ = shortest_steps(threat, points, w * scale, gap * scale)
    torch.testing.assert_close(scaled, d, rtol=0, atol=1e-5)


@each_threat
def test_a_lane_knows_nothing_of_the_others(threat: Threat) -> None:
    points, w, gap = problem(50, 300)
    d, lengths = shortest_steps(threat, points, w, gap)
    some = torch.tensor([31, 4])
    alone = shortest_steps(threat, points[some], w[some], gap[some])
    torch.testing.assert_close(alone, (d[some], lengths[some]), rtol=0, atol=1e-13)


@each_threat
def test_few_passes_are_enough(threat: Threat, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the cap is never used, with pieces as many as pixels."""
    points, w, gap = problem(200, 3000)
    exact, _ = shortest_steps(threat, points, w, gap)
    monkeypatch.setattr(fab, "NEWTON_STEPS", 25)
    early, _ = shortest_steps(threat, points, w, gap)
    assert torch.equal(early, exact)
