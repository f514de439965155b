"""Square: its schedule, squares and bumps against plain loops, its search, and linear models' worst cases."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atlas.attacks import NewAttempts, Square, engine
from atlas.attacks.square import SquareState, Windows, sides_of
from atlas.errors import UsageError
from atlas.objectives import margin
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

Array = NDArray[np.float64]
each_threat = pytest.mark.parametrize("threat", [Linf(0.1), L2(0.8)], ids=str)
GREY, COLOUR = (1, 28, 28), (3, 12, 10)


def net(shape: tuple[int, ...], seed: int = 0, classes: int = 4) -> nn.Sequential:
    torch.manual_seed(seed)
    size = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 20), nn.Tanh(), nn.Linear(20, classes)).double()


def grey(count: int, shape: tuple[int, ...] = GREY) -> Tensor:
    """Images in the middle of the box, which no small change leaves."""
    return torch.full((count, *shape), 0.5, dtype=torch.float64)


def fresh(x: Tensor, seed: int = 0) -> NewAttempts:
    y = torch.zeros(len(x), dtype=torch.int64)
    return NewAttempts(x, y, Rng.batch(len(x), seed=seed), y)


def started(x: Tensor, threat: Threat, steps: Tensor | None = None, seed: int = 0) -> SquareState:
    """Lanes whose best image is x + noise in the ball, at these steps."""
    state = Square().start(net(x.shape[1:]), fresh(x, seed), threat)
    best = threat.project(threat.random_start(x, Rng.batch(len(x), seed=99)), x)
    step = state.step if steps is None else steps
    return replace(state, x_best=best, loss_best=torch.full_like(state.loss_best, torch.inf), step=step)


def candidates(state: SquareState, threat: Threat) -> Tensor:
    """What the lanes would try next; their best image stands, because nothing is above an infinite loss."""
    return Square().advance(net(state.x.shape[1:]), state, threat).state.x_adv


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"queries": 0}, "queries must be .*, got 0"),
        ({"restarts": 0.5}, "restarts must be .*, got 0.5"),
        ({"p": 0.0}, "p must be .*, got 0.0"),
        ({"p": 1.1}, "p must be .*, got 1.1"),
        ({"p": math.nan}, "p must be .*, got nan"),
        ({"loss": "margn"}, "did you mean 'margin'"),
    ],
    ids=str,
)
def test_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Square(**wrong)


def test_only_images_have_squares() -> None:
    with pytest.raises(UsageError, match=r"needs images \[C, H, W\], got \(16,\)"):
        Square().start(net((16,)), fresh(torch.rand(2, 16)), Linf(0.1))


def test_sides() -> None:
    """round(sqrt(share h w)) of shares 0.8, 0.4, ...; in L2 made odd, and 3 at least. By hand."""
    assert sides_of(0.8, 28, 28, odd=False) == (25, 18, 13, 9, 6, 4, 3, 2, 2, 1)
    assert sides_of(0.8, 28, 28, odd=True) == (25, 19, 13, 9, 7, 5, 3, 3, 3, 3)
    assert sides_of(0.8, 32, 32, odd=False) == (29, 20, 14, 10, 7, 5, 4, 3, 2, 1)
    assert sides_of(1.0, 2, 50, odd=True) == (2,) * 10


SCHEDULE = {0: 25, 10: 25, 11: 18, 50: 18, 51: 13, 200: 13, 201: 9, 500: 9, 501: 6, 1000: 6, 1001: 4}
SCHEDULE |= {2000: 4, 2001: 3, 4000: 3, 4001: 2, 6000: 2, 6001: 2, 8000: 2, 8001: 1, 10**6: 1}


def test_each_lane_has_the_square_of_its_step() -> None:
    """A square of the schedule's side at a face of the ball, a sign for each channel; the rest stays."""
    x = grey(len(SCHEDULE), (3, 28, 28))
    state = started(x, Linf(0.1), torch.tensor(list(SCHEDULE)))
    for lane, (moved, side) in enumerate(zip(candidates(state, Linf(0.1)), SCHEDULE.values(), strict=True)):
        changed = moved != state.x_best[lane]
        assert torch.equal(changed[0], changed[1])
        assert torch.equal(changed[0], changed[2])
        rows, columns = changed[0].any(1).nonzero()[:, 0], changed[0].any(0).nonzero()[:, 0]
        assert len(rows) == len(columns) == side == int(changed[0].sum()) ** 0.5
        assert int(rows[-1] - rows[0]) == int(columns[-1] - columns[0]) == side - 1
        for channel in range(3):
            inside = (moved - x[lane])[channel][changed[channel]]
            assert (inside.abs() - 0.1).abs().max() < 1e-12
            assert len(inside.sign().unique()) == 1


def test_squares_lie_anywhere_with_fair_signs() -> None:
    """Rows and columns are uniform over all places, the last ones too, and independent of each other."""
    count, side, (height, width) = 24_000, 4, (8, 6)
    x = grey(count, (2, height, width))
    windows = Windows((1, side), torch.ones(count, dtype=torch.int64))
    places = windows.places(Rng.batch(count).bits((2,)), x)
    seen = torch.bincount(places[:, 0] * (width - side + 1) + places[:, 1], minlength=15)
    expected = count / 15
    assert seen.shape == (15,)
    assert (seen - expected).square().sum() / expected < 50  # chi-square with 14 degrees of freedom
    fewer = windows.places(Rng.batch(count).bits((2,)), x, last=False)
    assert fewer.amax(0).tolist() == [height - side - 1, width - side - 1]
    whole = Windows((width,), torch.zeros(count, dtype=torch.int64))
    assert whole.places(Rng.batch(count).bits((2,)), x, last=False)[:, 1].eq(0).all(), "there is no other"
    steps = torch.full((count,), 10**6)
    moved = candidates(started(x, Linf(0.1), steps), Linf(0.1)) - x
    up = ((moved - 0.1).abs().flatten(2).amin(2) < 1e-9).double()
    assert (up.mean(0) - 0.5).abs().max() < 5 / math.sqrt(4 * count)
    assert abs(np.corrcoef(up.T.numpy())[0, 1]) < 5 / math.sqrt(count)


def test_stripes() -> None:
    x = grey(500, COLOUR)
    start = Square().start(net(COLOUR), fresh(x), Linf(0.1)).x_adv - x
    assert (start.abs() - 0.1).abs().max() < 1e-12
    assert (start == start[:, :, :1]).all()
    share = (start[:, :, 0] > 0).double().mean(0)
    assert (share - 0.5).abs().max() < 5 / math.sqrt(4 * 500)
    edge = torch.zeros(4, *COLOUR)
    assert set(Square().start(net(COLOUR), fresh(edge), Linf(0.25)).x_adv.unique().tolist()) == {0.0, 0.25}


def pile(height: int, width: int) -> Array:
    """Rectangles around (height // 2, width // 2), drawn one by one."""
    drawn = np.zeros((height, width))
    for k in range(1, max(height // 2, width // 2) + 2):
        for i, j in product(range(height), range(width)):
            if abs(i - height // 2) < k and abs(j - width // 2) < k:
                drawn[i, j] += 1 / k**2
    return drawn / max(np.linalg.norm(drawn), 1e-300)


def bump(side: int) -> Array:
    both = np.concatenate([pile(side // 2, side), -pile(side - side // 2, side)])
    return np.asarray(both / np.linalg.norm(both))


def test_tiles() -> None:
    """Five by five bumps of side 5 around the middle of 28 x 28, each with its pose and, by channel, sign."""
    x = grey(60, (2, 28, 28))
    start = (Square().start(net((2, 28, 28)), fresh(x), L2(0.8)).x_adv - x).numpy()
    np.testing.assert_allclose(np.linalg.norm(start.reshape(60, -1), axis=1), 0.8)
    assert (start[:, :, [0, 26, 27]] == 0).all()
    assert (start[:, :, :, [0, 26, 27]] == 0).all()
    seen = set()
    for lane, i, j in product(range(60), range(5), range(5)):
        tile = start[lane, :, 1 + 5 * i : 6 + 5 * i, 1 + 5 * j : 6 + 5 * j] * math.sqrt(50) / 0.8
        fits = [
            (pose, *signs)
            for pose, signs in product((0, 1), product((-1, 1), repeat=2))
            if np.allclose(tile, np.array(signs)[:, None, None] * (bump(5).T if pose else bump(5)))
        ]
        assert len(fits) == 1
        seen.add(fits[0])
    assert len(seen) == 8


def moved_bump(
    delta: Array, first: Array, second: Array, new: Array, signs: Array, eps: float, side: int
) -> Array:
    """One candidate of L2 in one image, channel by channel, from the publication: [C, H, W]."""
    delta, channels = delta.copy(), len(delta)
    one, two = np.zeros(delta.shape[1:], bool), np.zeros(delta.shape[1:], bool)
    one[first[0] : first[0] + side, first[1] : first[1] + side] = True
    two[second[0] : second[0] + side, second[1] : second[1] + side] = True
    unused = max(eps**2 - np.sum(delta**2), 0)
    for c in range(channels):
        energy = np.sum(delta[c][one | two] ** 2) + unused / channels
        content = signs[c] * new.reshape(-1) + delta[c][one] / np.linalg.norm(delta[c][one])
        delta[c][two] = 0
        delta[c][one] = content / np.linalg.norm(content) * math.sqrt(energy)
    return delta


def test_bumps_are_those_of_a_plain_loop() -> None:
    """Lanes of all sides; the places of the windows are read from the random bits as `places` reads them."""
    threat, steps = L2(0.8), torch.tensor(list(SCHEDULE))
    x = grey(len(steps), (2, 28, 28))
    state = started(x, threat, steps)
    state = replace(state, x_best=x + 0.7 * (state.x_best - x))
    found = candidates(state, threat) - x
    bits = Rng(state.key).elements(steps[:, None] * 7 + torch.arange(7))
    sides = [side + (side + 1) % 2 if side > 2 else 3 for side in SCHEDULE.values()]
    for lane, side in enumerate(sides):
        windows = Windows((side,), torch.zeros(1, dtype=torch.int64))
        first, second = (
            windows.places(bits[lane : lane + 1, i : i + 2], x, last=False)[0].numpy() for i in (0, 2)
        )
        new = bump(side).T if bits[lane, 4] < 0 else bump(side)
        signs = np.where(bits[lane, 5:].numpy() < 0, 1, -1)
        delta = (state.x_best - x)[lane].numpy()
        expected = moved_bump(delta, first, second, new, signs, 0.8, side)
        np.testing.assert_allclose(found[lane].numpy(), expected, atol=1e-9)
        assert np.linalg.norm(found[lane]) == pytest.approx(0.8)


@each_threat
@pytest.mark.parametrize("shape", [GREY, COLOUR, (1, 3, 3), (2, 1, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_never_leaves_ball_or_box_and_keeps_the_best(
    threat: Threat, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Images of any shape, many pixels on the edges; the best image is the one with the highest margin."""
    pixels = np.clip(np.random.default_rng(0).uniform(-0.5, 1.5, (6, *shape)), 0, 1)
    x, model, attack = torch.tensor(pixels, dtype=dtype), net(shape).to(dtype), Square(queries=30)
    state = attack.start(model, fresh(x), threat)
    tried, losses = [], []
    for _ in range(30):
        state, x_tried, logits = attack.advance(model, state, threat)
        assert threat.contains(x_tried, x).all()
        assert ((x_tried >= 0) & (x_tried <= 1)).all()
        assert (x_tried.dtype, logits.requires_grad) == (dtype, False)
        tried.append(x_tried)
        losses.append(margin(logits, state.y))
        best = torch.stack(losses).argmax(0)
        assert torch.equal(state.x_best, torch.stack(tried)[best, torch.arange(6)])
        assert torch.equal(state.loss_best, torch.stack(losses).amax(0))
    assert (losses[0] < state.loss_best).any()


@each_threat
def test_a_lane_knows_nothing_of_the_others(threat: Threat) -> None:
    """Each has its own squares, and the same ones alone."""
    state = started(grey(40, COLOUR), threat, torch.arange(40) * 30)
    moved = candidates(state, threat)
    some = torch.tensor([17, 3])
    torch.testing.assert_close(candidates(state.select(some), threat), moved[some], rtol=0, atol=1e-12)
    same_step = candidates(started(grey(40, COLOUR), threat, torch.full((40,), 300)), threat)
    assert len({tuple(lane.flatten().tolist()) for lane in same_step}) == 40


@each_threat
def test_it_asks_one_more_point_than_queries_and_needs_no_gradient(threat: Threat) -> None:
    """A model in numpy."""
    weights = np.random.default_rng(1).normal(size=(math.prod(COLOUR), 3))
    asked = []

    def model(pixels: Tensor) -> Tensor:
        asked.extend(pixels.numpy().tolist())
        return torch.from_numpy(pixels.numpy().reshape(len(pixels), -1) @ weights + [0, 0, 1e3])

    x = grey(1, COLOUR)
    outcome = engine.run(Square(queries=40), model, x, torch.tensor([2]), threat, Rng.batch(1))
    assert outcome.robust.all()
    assert (outcome.queries == 41).all()
    assert len(asked) == 42, "the image itself, the start and 40 candidates"


def linear(shape: tuple[int, ...], seed: int) -> tuple[nn.Module, Tensor]:
    """A linear classifier of two classes, and the slope of f_1 - f_0."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 2)).double()
    return model, (model[1].weight[1] - model[1].weight[0]).detach()


@pytest.mark.parametrize("loss", ["margin", "ce"])
def test_linf_reaches_the_worst_case_of_a_linear_model(loss: Any) -> None:
    """Single pixels come last, so the best corner of ball and box is found: fooled 1e-4 above the radius of
    the closed form (sum_i min(eps |s_i|, |s_i| room_i) = margin, by bisection), not 1e-4 below."""
    shape = (1, 4, 4)
    model, slope = linear(shape, 3)
    x = torch.tensor(np.clip(np.random.default_rng(2).uniform(-0.3, 1.3, (3, *shape)), 0, 1))
    y = model(x).argmax(1)
    for one, label in zip(x, y, strict=True):
        s = slope if label == 0 else -slope
        space = torch.where(s > 0, 1 - one.flatten(), one.flatten())
        gap = -margin(model(one[None]), label[None]).item()
        low, high = 0.0, 1.0
        for _ in range(60):
            eps = (low + high) / 2
            reached = (s.abs() * space.clamp_max(eps)).sum().item() >= gap
            low, high = (low, eps) if reached else (eps, high)
        assert high < 0.9
        attack = Square(queries=900, loss=loss)
        below, above = (
            engine.run(attack, model, one[None], label[None], Linf(high * share), Rng.batch(1)).robust
            for share in (1 - 1e-4, 1 + 1e-4)
        )
        assert below.all()
        assert not above.any()


def test_l2_comes_near_the_worst_case_of_a_linear_model() -> None:
    """Where the box is far, the gain is at most eps ||s||. Bumps of 3 x 3 pixels get half of it and
    more, where a random change of that length gets a fifth. The last row and column, which they spare, have
    no slope here."""
    shape, eps = (1, 6, 6), 0.3
    model, slope = linear(shape, 5)
    for weights in (model[1].weight.data.view(2, 6, 6), slope.view(6, 6)):  # type: ignore[index]
        weights[..., -1], weights[..., -1, :] = 0, 0
    x = grey(20, shape)
    state, attack = Square().start(model, fresh(x), L2(eps)), Square()
    for _ in range(1500):
        state = attack.advance(model, state, L2(eps)).state
    gain = (state.x_best - x).flatten(1) @ slope.double()
    bound = eps * slope.norm().item()
    assert gain.max() <= bound + 1e-9
    assert gain.min() >= bound / 2
