"""FAB-T: shortest steps onto a hyperplane in the box, steps against a plain loop, linear models."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atlas.attacks import NewAttempts, TargetedFAB, engine, fab
from atlas.attacks.fab import shortest_steps
from atlas.errors import UsageError
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

Array = NDArray[np.float64]
each_threat = pytest.mark.parametrize("threat", [Linf(0.2), L2(0.6)], ids=str)
SHAPE = (1, 4, 4)
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
def test_few_passes_are_enough(threat: Threat, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the cap is never used, with pieces as many as pixels."""
    points, w, gap = problem(200, 3000)
    exact, _ = shortest_steps(threat, points, w, gap)
    monkeypatch.setattr(fab, "NEWTON_STEPS", 25)
    early, _ = shortest_steps(threat, points, w, gap)
    assert torch.equal(early, exact)


def net(seed: int = 0, classes: int = 5) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, classes)).double()


def images(count: int, seed: int = 1) -> Tensor:
    """Half of the pixels lie on the edges of the box."""
    pixels = np.random.default_rng(seed).uniform(-0.5, 1.5, (count, *SHAPE))
    return torch.tensor(np.clip(pixels, 0, 1))


def fresh(x: Tensor, y: Tensor, attempt: int = 0, seed: int = 0) -> NewAttempts:
    return NewAttempts(x, y, Rng.batch(len(x), seed=seed), torch.full_like(y, attempt))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"targets": 0}, "targets must be .*, got 0"),
        ({"steps": 0}, "steps must be .*, got 0"),
        ({"restarts": 1.5}, "restarts must be .*, got 1.5"),
        ({"alpha_max": -0.1}, "alpha_max must be .*, got -0.1"),
        ({"beta": 1.1}, "beta must be .*, got 1.1"),
        ({"eta": 0.99}, "eta must be .*, got 0.99"),
        ({"eta": math.nan}, "eta must be .*, got nan"),
    ],
    ids=str,
)
def test_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        TargetedFAB(**wrong)


def test_it_is_autoattacks_by_default() -> None:
    attack = TargetedFAB()
    assert (attack.targets, attack.steps, attack.restarts) == (9, 100, 1)
    assert (attack.alpha_max, attack.eta, attack.beta) == (0.1, 1.05, 0.9)
    assert [attack.attempts(classes) for classes in (2, 3, 10, 100)] == [1, 2, 9, 9]
    assert TargetedFAB(targets=3, restarts=4).attempts(10) == 12


def test_targets_are_the_likeliest_wrong_classes() -> None:
    logits = torch.tensor([[3.0, 9.0, 1.0, 5.0], [0.0, -1.0, -2.0, 4.0]]).double()
    x, y = images(2), torch.tensor([1, 3])
    attack, found = TargetedFAB(targets=2, restarts=2), []
    for attempt in range(4):
        begin = NewAttempts(x, y, Rng.batch(2), torch.full_like(y, attempt), logits)
        found.append(attack.start(net(), begin, Linf(0.1)).target.tolist())
    assert found == [[3, 0], [0, 1], [3, 0], [0, 1]]


@each_threat
def test_first_from_the_image_then_from_half_the_radius(threat: Threat) -> None:
    x, y = torch.full((50, *SHAPE), 0.5, dtype=torch.float64), torch.zeros(50, dtype=torch.int64)
    attack = TargetedFAB(targets=2, restarts=3)
    starts = [attack.start(net(), fresh(x, y, attempt, seed=attempt), threat).x_adv for attempt in range(6)]
    assert torch.equal(starts[0], x)
    assert torch.equal(starts[1], x)
    half = torch.full((50,), threat.eps / 2, dtype=torch.float64)
    for start in starts[2:]:
        torch.testing.assert_close(threat.distance(start, x), half)
    assert len({tuple(start[0].flatten().tolist()) for start in starts[2:]}) == 4
    edge = attack.start(net(), fresh(torch.zeros_like(x), y, 2), threat).x_adv
    assert ((edge >= 0) & (edge <= 1)).all()


def nearest(point: Array, w: Array, gap: float, threat: Threat) -> Array:
    """The shortest step with w.d = gap inside the box, by bisection."""
    low, high = 0.0, 1e6
    for _ in range(300):
        middle = (low + high) / 2
        free = middle * np.sign(gap) * (np.sign(w) if isinstance(threat, Linf) else w)
        short = abs(w @ np.clip(free, -point, 1 - point)) < abs(gap)
        low, high = (middle, high) if short else (low, middle)
    free = high * np.sign(gap) * (np.sign(w) if isinstance(threat, Linf) else w)
    return np.asarray(np.clip(free, -point, 1 - point))


def norm(d: Array, threat: Threat) -> float:
    return float(np.abs(d).max() if isinstance(threat, Linf) else np.linalg.norm(d))


def walk(model: nn.Module, x: Array, y: int, target: int, threat: Threat, steps: int) -> list[Array]:
    """The points at which FAB asks, one image at a time, from the formulas of the publication."""

    def gradient(point: Array) -> tuple[float, Array]:
        at = torch.tensor(point.reshape(1, *SHAPE), requires_grad=True)
        h = model(at)[0, target] - model(at)[0, y]
        (g,) = torch.autograd.grad(h, at)
        return h.item(), g.numpy().reshape(-1)

    at, tried = x.copy(), []
    for _ in range(steps):
        h, w = gradient(at)
        b = w @ at - h
        d, d_0 = nearest(at, w, b - w @ at, threat), nearest(x, w, b - w @ x, threat)
        a = min(norm(d, threat) / (norm(d, threat) + norm(d_0, threat)), 0.1)
        at = np.clip((1 - a) * (at + 1.05 * d) + a * (x + 1.05 * d_0), 0, 1)
        tried.append(at)
        if model(torch.tensor(at.reshape(1, *SHAPE))).argmax().item() != y:
            at = x + 0.9 * (at - x)
    return tried


@each_threat
def test_steps_are_those_of_a_plain_loop(threat: Threat) -> None:
    model, x = net(), images(6)
    y = model(x).argmax(1)
    attack = TargetedFAB(steps=12)
    for rank in range(2):
        state = attack.start(model, fresh(x, y, rank), threat)
        wrong = model(x).argsort(1, descending=True)[:, rank + 1]
        assert torch.equal(state.target, wrong)
        tried, hits = [], 0
        for _ in range(12):
            state, x_tried, logits = attack.advance(model, state, threat)
            hits += int((logits.argmax(1) != y).sum())
            tried.append(x_tried.flatten(1))
        assert 0 < hits < 12 * 6, "both kinds of step are to occur"
        for lane in range(6):
            expected = walk(model, x[lane].flatten().numpy(), int(y[lane]), int(wrong[lane]), threat, 12)
            found = np.stack([points[lane].numpy() for points in tried])
            np.testing.assert_allclose(found, np.stack(expected), atol=1e-9)


def linear(classes: int, seed: int = 2) -> tuple[nn.Module, Array, Array]:
    """A linear classifier with its weights and biases."""
    rng = np.random.default_rng(seed)
    W, b = rng.normal(size=(classes, 16)), rng.normal(size=classes) * 0.1
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, classes)).double()
    model[1].weight.data.copy_(torch.tensor(W))
    model[1].bias.data.copy_(torch.tensor(b))
    return model, W, b


def radius(x: Array, y: int, W: Array, b: Array, threat: Threat) -> float:
    """The exact distance to the nearest other class that the box lets come up."""
    f, lengths = W @ x + b, []
    for i in set(range(len(b))) - {y}:
        d = nearest(x, W[i] - W[y], f[y] - f[i], threat)
        if np.isclose((W[i] - W[y]) @ d, f[y] - f[i]):
            lengths.append(norm(d, threat))
    return min(lengths)


@each_threat
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize(
    ("eta", "tolerance", "dtype"),
    [(1.00001, 1e-4, torch.float64), (1.00001, 1e-4, torch.float32), (1.05, 6e-3, torch.float64)],
    ids=str,
)
def test_the_distance_of_a_linear_model(
    threat: Threat, classes: int, eta: float, tolerance: float, dtype: torch.dtype
) -> None:
    """Fooled just above the closed form, not just below. eta says how far beyond the boundary it aims."""
    model, W, b = linear(classes)
    x = images(5, seed=3)
    y = model(x).argmax(1)
    attack = TargetedFAB(steps=12, eta=eta)
    for one, label in zip(x, y, strict=True):
        exact = radius(one.flatten().numpy(), int(label), W, b, threat)
        below, above = (
            engine.run(attack, model.to(dtype), one[None].to(dtype), label[None], near, Rng.batch(1)).robust
            for near in (threat.at(exact * (1 - 1e-4)), threat.at(exact * (1 + tolerance)))
        )
        assert below.all()
        assert not above.any()


@each_threat
def test_points_outside_the_ball_do_not_count(threat: Threat) -> None:
    """It walks far beyond eps, finds misclassified points there, and the verdict is that the model stands."""
    model, W, b = linear(3)
    x = images(20, seed=4)
    y = model(x).argmax(1)
    exact = min(radius(one.flatten().numpy(), int(c), W, b, threat) for one, c in zip(x, y, strict=True))
    small = threat.at(exact * 0.9)
    state = TargetedFAB().start(model, fresh(x, y), small)
    _, x_tried, logits = TargetedFAB().advance(model, state, small)
    assert (logits.argmax(1) != y).any()
    assert not small.contains(x_tried, x).any()
    assert engine.run(TargetedFAB(steps=10), model, x, y, small, Rng.batch(20)).robust.all()


def test_a_flat_model_is_left_alone() -> None:
    """No gradient, no step; and nothing is NaN."""
    x = images(3)
    y = torch.zeros(3, dtype=torch.int64)

    def flat(pixels: Tensor) -> Tensor:
        return pixels.flatten(1)[:, :3] * 0 + torch.tensor([1.0, 0.5, 0.0])

    outcome = engine.run(TargetedFAB(steps=3), flat, x, y, Linf(0.3), Rng.batch(3))
    assert outcome.robust.all()
    assert torch.equal(outcome.x_adv, x)
    assert (outcome.queries == 2 * 3 * 2).all()


def test_restarts_can_find_what_the_first_misses() -> None:
    """Around x the model is flat; only a start elsewhere sees a slope."""
    x = torch.full((20, *SHAPE), 0.5, dtype=torch.float64)
    y = torch.zeros(20, dtype=torch.int64)

    def plateau(pixels: Tensor) -> Tensor:
        far = ((pixels - x[:1]).flatten(1).abs().amax(1) - 0.02).clamp_min(0)
        return torch.stack([torch.ones_like(far) * 0.1, far], 1)

    once, twice = (
        engine.run(TargetedFAB(steps=5, restarts=r), plateau, x, y, Linf(0.2), Rng.batch(20)) for r in (1, 2)
    )
    assert once.robust.all()
    assert not twice.robust.any()
    assert (twice.attempt == 1).all()
