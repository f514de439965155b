"""Threat models: starts, steps, nearest points and membership."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atlas.errors import UsageError
from atlas.rng import Rng
from atlas.threat import L2, THREATS, TOLERANCE, Linf, Threat, eps_text

KINDS = [Linf, L2]
each_kind = pytest.mark.parametrize("kind", KINDS)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def images(count: int, *shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Images with about a quarter of their pixels on the edges of the box, as real ones have."""
    generator = torch.Generator().manual_seed(seed)
    return (1.3 * torch.rand(count, *shape, dtype=dtype, generator=generator) - 0.15).clamp_(0, 1)


# --- building ---


@pytest.mark.parametrize("eps", [-1e-9, -1.0, math.nan, math.inf, -math.inf])
@each_kind
def test_impossible_radius(kind: type[Threat], eps: float) -> None:
    with pytest.raises(UsageError, match=rf"{kind.__name__}: eps must be .*8/255"):
        kind(eps)


@pytest.mark.parametrize(
    ("eps", "text"),
    [
        *((0.3, "0.3"), (8 / 255, "8/255"), (float(np.float32(8 / 255)), "8/255"), (0.0, "0"), (1.0, "1")),
        *(
            (0.2, "0.2"),
            (51 / 255, "0.2"),
            (0.031, "0.031"),
            (0.0314, "0.0314"),
            (0.5, "0.5"),
            (128 / 255, "128/255"),
        ),
        *((8.001 / 255, "0.03138"), (0.123456, "0.1235"), (300 / 255, "300/255"), (1e-9, "1e-09")),
    ],
)
def test_eps_reads_as_it_was_typed(eps: float, text: str) -> None:
    assert eps_text(eps) == text
    assert repr(L2(eps)) == f"L2(eps={text if '/' in text else eps})", "no digit is lost"


def test_linf_beyond_the_box_is_a_mistake_of_units() -> None:
    with pytest.raises(UsageError, match=r"eps must be between 0 and 1, in pixel units of .* got 8"):
        Linf(8)
    assert Linf(1).eps == 1
    assert L2(8).eps == 8


@each_kind
def test_at_another_radius(kind: type[Threat]) -> None:
    assert kind(0.3).at(0.1) == kind(0.1)
    with pytest.raises(UsageError):
        kind(0.3).at(-0.1)


def test_kinds_are_without_common_folders_and_registered() -> None:
    assert Linf(0.1) != L2(0.1)
    assert set(THREATS.values()) == set(KINDS), "a new threat needs a place in these tests"


# --- random starts ---


@each_kind
@each_dtype
def test_starts_lie_in_the_ball_and_when_clipped_in_the_box(kind: type[Threat], dtype: torch.dtype) -> None:
    threat, x = kind(0.4), images(500, 1, 3, 3, dtype=dtype)
    free = threat.random_start(x, Rng.batch(500), clip=False)
    clipped = threat.random_start(x, Rng.batch(500))
    assert (threat.distance(free, x) <= 0.4 + TOLERANCE).all()
    assert free.min() < 0
    assert free.max() > 1
    assert torch.equal(clipped, free.clamp(0, 1))
    assert threat.contains(clipped, x).all()
    assert clipped.dtype == dtype


def test_linf_starts_are_uniform() -> None:
    """Each pixel of the noise: mean 0, variance eps^2 / 3, fourth moment eps^4 / 5, no two correlated."""
    count, eps = 20_000, 0.3
    noise = Linf(eps).noise(torch.zeros(count, 1, 2, 2, dtype=torch.float64), Rng.batch(count)).flatten(1)
    unit = noise / eps
    assert unit.abs().max() <= 1
    assert unit.abs().max() > 0.999
    assert unit.mean(0).abs().max() < 5 * math.sqrt(1 / 3 / count)
    assert (unit.square().mean(0) - 1 / 3).abs().max() < 5 * math.sqrt((1 / 5 - 1 / 9) / count)
    assert (unit.pow(4).mean(0) - 1 / 5).abs().max() < 5 * math.sqrt((1 / 9 - 1 / 25) / count)
    covariance = (unit.T @ unit / count).fill_diagonal_(0)
    assert covariance.abs().max() < 5 / 3 / math.sqrt(count)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_l2_starts_are_uniform(size: int) -> None:
    """In R^N: (r / eps)^N is uniform, the mean is 0, and the covariance is eps^2 / (N + 2) times 1."""
    count, eps = 20_000, 1.7
    noise = L2(eps).noise(torch.zeros(count, size, dtype=torch.float64), Rng.batch(count, seed=1)) / eps
    volume = noise.norm(dim=1) ** size
    assert volume.max() <= 1 + 1e-12
    for power in (1, 2, 3):
        spread = math.sqrt(1 / (2 * power + 1) - 1 / (power + 1) ** 2)
        assert abs(volume.pow(power).mean().item() - 1 / (power + 1)) < 5 * spread / math.sqrt(count)
    assert noise.mean(0).abs().max() < 5 / math.sqrt((size + 2) * count)
    covariance = noise.T @ noise / count
    assert (covariance - torch.eye(size) / (size + 2)).abs().max() < 5 * 0.6 / math.sqrt(count)


@each_kind
def test_starts_of_no_images(kind: type[Threat]) -> None:
    assert kind(0.1).random_start(torch.empty(0, 1, 2, 2), Rng.batch(0)).shape == (0, 1, 2, 2)


@each_kind
def test_radius_0_is_the_image_itself(kind: type[Threat]) -> None:
    threat, x = kind(0.0), images(6, 3, 4, 4)
    assert torch.equal(threat.random_start(x, Rng.batch(6)), x)
    assert torch.equal(threat.project(images(6, 3, 4, 4, seed=1), x), x)
    assert threat.contains(x, x).all()


# --- the nearest point ---

pixels = st.floats(0, 1)
anywhere = st.floats(-3, 4)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Threat, Tensor, Tensor]:
    """(threat, x_adv, x): an image with black and white pixels, and a point anywhere."""
    size = draw(st.integers(1, 8))
    x = draw(st.lists(st.one_of(st.just(0.0), st.just(1.0), pixels), min_size=size, max_size=size))
    x_adv = draw(st.lists(anywhere, min_size=size, max_size=size))
    threat = draw(st.sampled_from(KINDS))(draw(st.floats(0.001, 1)))
    return threat, torch.tensor([x_adv], dtype=torch.float64), torch.tensor([x], dtype=torch.float64)


def in_ball_and_box(threat: Threat, x: Tensor, count: int) -> Tensor:
    """Points of ball and box, by rejection and by plain shrinking, no projection involved."""
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(count, x.shape[1], dtype=x.dtype, generator=generator).round()
    inner = torch.rand(count, x.shape[1], dtype=x.dtype, generator=generator)
    delta = torch.cat([corners, inner]) - x  # the box is convex, so shrinking towards x stays inside
    size = delta.abs().amax(1) if isinstance(threat, Linf) else delta.square().sum(1).sqrt()
    return x + delta * (threat.eps / size.clamp_min(1e-12)).clamp_max(1)[:, None]


@settings(deadline=None, derandomize=True, max_examples=200)
@given(cases())
def test_projection_is_the_nearest_point(case: tuple[Threat, Tensor, Tensor]) -> None:
    """p is nearest to a in the convex set K exactly if p is in K and (a - p).(z - p) <= 0 for all z in K."""
    threat, x_adv, x = case
    p = threat.project(x_adv, x)
    assert threat.contains(p, x, tolerance=1e-12)
    others = in_ball_and_box(threat, x, 200)
    angles = ((x_adv - p) * (others - p)).sum(1)
    assert angles.max() <= 1e-9


@settings(deadline=None, derandomize=True, max_examples=100)
@given(cases())
def test_projection_is_idempotent_and_leaves_inner_points_alone(case: tuple[Threat, Tensor, Tensor]) -> None:
    threat, x_adv, x = case
    p = threat.project(x_adv, x)
    torch.testing.assert_close(threat.project(p, x), p, rtol=0, atol=1e-12)
    inner = x + 0.9 * (p - x)
    torch.testing.assert_close(threat.project(inner, x), inner, rtol=0, atol=1e-15)


@each_kind
def test_projection_against_brute_force(kind: type[Threat]) -> None:
    """Two pixels, all points of a fine grid in ball and box: none is nearer."""
    line = torch.linspace(0, 1, 401, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    for seed in range(20):
        x, threat = images(1, 2, seed=seed), kind(0.35)
        x_adv = 3 * images(1, 2, seed=seed + 100) - 1
        inside = grid[threat.distance(grid, x) <= 0.35]
        nearest = (inside - x_adv).norm(dim=1).min()
        ours = (threat.project(x_adv, x) - x_adv).norm()
        assert nearest - 2 / 400 < ours <= nearest + 1e-12


@each_kind
@each_dtype
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 8, 8)])
def test_projection_of_images(kind: type[Threat], dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Rounding keeps within the tolerance, the arguments stay as they are, each image stands for itself."""
    threat, x = kind(0.5), images(16, *shape, dtype=dtype)
    x_adv = 2 * images(16, *shape, dtype=dtype, seed=1) - 0.5
    before = x_adv.clone(), x.clone()
    p = threat.project(x_adv, x)
    assert torch.equal(x_adv, before[0])
    assert torch.equal(x, before[1])
    assert threat.contains(p, x).all()
    alone = torch.cat([threat.project(x_adv[i : i + 1], x[i : i + 1]) for i in range(16)])
    torch.testing.assert_close(p, alone, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)
    torch.testing.assert_close(threat.project(p, x), p, rtol=0, atol=1e-6)
    assert (threat.distance(p, x) > 0.5 - 1e-5).all(), "far points are to land on the surface"


@each_kind
def test_projection_of_an_image_does_not_depend_on_its_neighbours(kind: type[Threat]) -> None:
    """To the bit: a neighbour that takes longer to settle gives nobody else another round of rounding."""
    threat, x = kind(0.5), images(64, 1, 6, 6, dtype=torch.float32)
    x_adv = 2 * images(64, 1, 6, 6, dtype=torch.float32, seed=1) - 0.5
    among_others = threat.project(x_adv, x)
    for i in range(64):
        copies = threat.project(x_adv[i : i + 1].repeat(64, 1, 1, 1), x[i : i + 1].repeat(64, 1, 1, 1))
        assert torch.equal(copies[i], among_others[i])


# --- steps ---


def test_linf_steps_along_the_sign() -> None:
    x = images(2, 1, 2, 2)
    gradient = torch.tensor([[[[3.0, -2.0], [0.0, 1e-30]]]], dtype=torch.float64).expand(2, -1, -1, -1)
    sign = torch.tensor([[1.0, -1.0], [0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(Linf(0.1).ascend(x, gradient, 0.05), x + 0.05 * sign)
    sizes = torch.tensor([0.05, 0.2], dtype=torch.float64)
    torch.testing.assert_close(Linf(0.1).ascend(x, gradient, sizes), x + sizes[:, None, None, None] * sign)


@each_dtype
@pytest.mark.parametrize("scale", [1e-42, 1e-38, 1e-25, 1e-10, 1.0, 1e10, 1e20, 1e35])
def test_l2_steps_have_their_length_whatever_the_gradients_scale(scale: float, dtype: torch.dtype) -> None:
    x = images(4, 1, 5, 5, dtype=dtype)
    unit = torch.randn(4, 1, 5, 5, dtype=dtype, generator=torch.Generator().manual_seed(0))
    sizes = torch.tensor([0.01, 0.1, 1.0, 2.0], dtype=dtype)
    moved = L2(1.0).ascend(x, unit * scale, sizes) - x
    torch.testing.assert_close(moved.flatten(1).norm(dim=1), sizes, rtol=1e-3, atol=1e-6)
    cosine = torch.nn.functional.cosine_similarity(moved.flatten(1), unit.flatten(1))
    assert cosine.min() > 0.999


@each_kind
def test_no_gradient_no_step(kind: type[Threat]) -> None:
    x = images(3, 1, 2, 2)
    assert torch.equal(kind(0.1).ascend(x, torch.zeros_like(x), 0.1), x)


# --- membership ---


@each_kind
def test_distance(kind: type[Threat]) -> None:
    x, x_adv = images(5, 3, 4, 4), images(5, 3, 4, 4, seed=1)
    delta = (x_adv - x).flatten(1).numpy()
    wanted = np.abs(delta).max(1) if kind is Linf else np.sqrt((delta**2).sum(1))
    np.testing.assert_allclose(kind(0.1).distance(x_adv, x), wanted, rtol=1e-12)


def nudge(x: Tensor, by: float) -> Tensor:
    """x with its first pixel moved, in both norms by as much."""
    moved = x.clone()
    moved[:, 0, 0, 0] += by
    return moved


@each_kind
@pytest.mark.parametrize(
    ("moved", "inside"),
    [
        (lambda x: nudge(x, 0.1), True),
        (lambda x: nudge(x, 0.1 + 0.5 * TOLERANCE), True),
        (lambda x: nudge(x, 0.1 + 2 * TOLERANCE), False),
        (lambda x: nudge(x, -0.1 - 2 * TOLERANCE), False),
        (lambda x: nudge(x, math.nan), False),
        (lambda x: nudge(x, math.inf), False),
    ],
    ids=["surface", "rounding", "outside", "outside below", "nan", "inf"],
)
def test_ball_membership(kind: type[Threat], moved: Callable[[Tensor], Tensor], inside: bool) -> None:
    x = torch.full((3, 1, 2, 2), 0.5, dtype=torch.float64)
    assert kind(0.1).contains(moved(x), x).tolist() == [inside] * 3


@each_kind
@pytest.mark.parametrize(
    ("edge", "by", "inside"),
    [(0.0, -0.5e-6, True), (0.0, -2e-6, False), (1.0, 0.5e-6, True), (1.0, 2e-6, False)],
)
def test_box_membership(kind: type[Threat], edge: float, by: float, inside: bool) -> None:
    x = torch.full((1, 1, 2, 2), edge, dtype=torch.float64)
    assert kind(0.1).contains(nudge(x, by), x).item() is inside


@pytest.mark.parametrize("eps", [0.5, 3.0, 40.0])
def test_honest_points_of_a_large_l2_ball_are_members(eps: float) -> None:
    """In float32 the length of 150,528 pixels is off by some 1e-7 of itself, not of a pixel."""
    x = torch.full((4, 3, 224, 224), 0.5)
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) - 0.5
    assert L2(eps).contains(L2(eps).project(x + noise, x), x).all()
    assert not L2(eps).contains(L2(eps * 1.001).project(x + noise, x), x).any()
