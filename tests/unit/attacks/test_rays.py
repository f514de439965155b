"""RayS, query for query against a plain loop over one image; closed forms; figures of the published code."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from atlas.attacks import NewAttempts, RayS, engine
from atlas.attacks.attack_log import CLEAN, SURVIVED
from atlas.attacks.rays import distance_curve
from atlas.data import load
from atlas.errors import NumericError, UsageError
from atlas.models import build
from atlas.rng import Rng
from atlas.threat import L2, Linf

Array = NDArray[np.float64]
WEIGHTS = Path(__file__).parents[4] / "shared" / "models" / "wong_mnist_fgsm.safetensors"
COUNT, SIDE, QUERIES = 24, 5, 300


def net() -> nn.Sequential:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 20), nn.ReLU(), nn.Linear(20, 4)).double()
    with torch.no_grad():
        model[1].weight.mul_(4)
        model[1].bias.copy_(-model[1].weight.sum(1) / 2)
    return model


def images() -> tuple[Tensor, Tensor]:
    """25 entries, so that no level but the last divides them; some images are wrong from the start."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(COUNT, 1, SIDE, SIDE, dtype=torch.float64, generator=generator)
    y = net()(x).argmax(1)
    y[::8] = (y[::8] + 1) % 4
    return x, y


def plain(model: nn.Module, x: Array, label: int) -> Iterator[Array]:
    """The points that RayS asks about one flat image, in turn, without end."""

    def fools(point: Array) -> bool:
        with torch.no_grad():
            return int(model(torch.from_numpy(point)[None]).argmax()) != label

    def at(direction: Array, length: float) -> Array:
        return np.clip(x + length * direction / np.linalg.norm(direction), 0, 1)

    ray, best, level = np.ones(x.size), math.inf, 0
    while True:
        width = math.ceil(x.size / 2**level)
        for block in range(2**level):
            if block * width >= x.size:
                break
            trial = ray.copy()
            trial[block * width : (block + 1) * width] *= -1
            point = at(trial, best)
            yield point
            if not fools(point):
                continue
            low, high = 0.0, min(best, float(np.linalg.norm(trial)))
            while True:
                middle = (low + high) / 2
                point = at(trial, middle)
                yield point
                low, high = (low, middle) if fools(point) else (middle, high)
                if high - low <= 1e-3:
                    break
            if high < best:
                best, ray = high, trial
        level += 1


def asked(model: nn.Module, i: int) -> tuple[Array, Array]:
    """The first points that the plain loop asks about example i, and which of them fool."""
    x, y = images()
    loop = plain(model, x[i].flatten().numpy(), int(y[i]))
    points = np.stack([next(loop) for _ in range(QUERIES)])
    with torch.no_grad():
        fool = model(torch.from_numpy(points)).argmax(1) != y[i]
    return points, fool.numpy()


def test_query_for_query_as_a_plain_loop() -> None:
    (x, y), model, attack = images(), net(), RayS(QUERIES)
    state = attack.start(model, NewAttempts(x, y, Rng.batch(COUNT), torch.zeros_like(y)), Linf(0.3))
    seen, mixed = [], 0
    for _ in range(QUERIES):
        state, x_tried, _ = attack.advance(model, state, Linf(0.3))
        seen.append(x_tried.flatten(1))
        mixed += len(set(state.size.tolist())) > 1 and len(set(state.searching.tolist())) == 2
    wanted = np.stack([asked(model, i)[0] for i in range(COUNT)], 1)
    np.testing.assert_allclose(torch.stack(seen).numpy(), wanted, rtol=0, atol=1e-12)
    assert mixed > 20, "lanes of several levels, checking and searching, are to share batches"
    assert (state.size == 1).all(), "all are to have come to single entries"


@pytest.mark.parametrize("batch_size", [5, 64])
def test_the_engine_stops_at_the_first_query_that_fools_within_eps(batch_size: int) -> None:
    (x, y), model, threat = images(), net(), Linf(0.07)
    found = engine.run(RayS(QUERIES), model, x, y, threat, Rng.batch(COUNT), batch_size=batch_size)
    for i in range(COUNT):
        points, fool = asked(model, i)
        near = np.abs(points - x[i].flatten().numpy()).max(1) <= threat.eps + 1e-6
        hits = np.flatnonzero(fool & near)
        if found.attempt[i] == CLEAN:
            assert found.queries[i] == 0
        elif found.attempt[i] == SURVIVED:
            assert not len(hits)
            assert found.queries[i] == QUERIES
        elif found.step[i] < QUERIES:
            assert found.queries[i] == hits[0] + 1
            np.testing.assert_allclose(found.x_adv[i].flatten().numpy(), points[hits[0]], atol=1e-12)
    assert {CLEAN, SURVIVED, 0} <= set(found.attempt.tolist())


def test_the_distance_curve_is_the_least_distance_so_far() -> None:
    (x, y), model, at = images(), net(), (1, 40, QUERIES, 7)
    curve = distance_curve(model, x, y, at, batch_size=7)
    for i in range(COUNT):
        points, fool = asked(model, i)
        clean = int(model(x[i : i + 1]).argmax()) == int(y[i])
        distance = np.where(fool, np.abs(points - x[i].flatten().numpy()).max(1), math.inf)
        wanted = [distance[:n].min() if clean else 0.0 for n in at]
        np.testing.assert_allclose(curve[i].numpy(), wanted, rtol=0, atol=1e-12)
    assert curve.isinf().any(), "the first query is not to fool everyone"


def test_it_ends_at_the_boundary_of_a_linear_model() -> None:
    """The nearest point of {s.x + c = 0} in L-inf is |s.x + c| / ||s||_1 away, along a ray of signs."""
    torch.manual_seed(0)
    slope = torch.randn(1, 16, dtype=torch.float64)
    x = 0.5 + 0.05 * torch.randn(10, 1, 4, 4, dtype=torch.float64)

    def model(pixels: Tensor) -> Tensor:
        value = (pixels - 0.5).flatten(1) @ slope.T
        return torch.cat([value, -value], 1)

    y = model(x).argmax(1)
    distance = (model(x)[:, 0].abs() / slope.abs().sum()).tolist()
    found = distance_curve(model, x, y, (2000,))[:, 0]
    for least, one in zip(distance, found.tolist(), strict=True):
        assert least <= one <= least + 1e-3 / 4 + 1e-9


def test_it_sees_nothing_but_classes() -> None:
    (x, y), model = images(), net()

    def classes(pixels: Tensor) -> Tensor:
        return nn.functional.one_hot(model(pixels).argmax(1), 4).double()

    one, other = (engine.run(RayS(200), m, x, y, Linf(0.07), Rng.batch(COUNT)) for m in (model, classes))
    assert torch.equal(one.queries, other.queries)
    assert torch.equal(one.x_adv, other.x_adv)


def test_refused() -> None:
    (x, y), model = images(), net()
    with pytest.raises(UsageError, match=r"queries must be .*, got 0"):
        RayS(0)
    with pytest.raises(UsageError, match=r"RayS got L2\(eps=0.5\); it is defined for Linf"):
        RayS()(model, x, y, L2(0.5))
    with pytest.raises(UsageError, match=r"at\[1\] must be an integer >= 1, got 0"):
        distance_curve(model, x, y, (5, 0))
    with pytest.raises(NumericError, match="not finite"):
        distance_curve(lambda pixels: model(pixels) * torch.nan, x, y, (5,))


published = pytest.mark.skipif(
    not WEIGHTS.exists(), reason=f"the published weights {WEIGHTS.name} are not here"
)


def wong(data_root: Path) -> tuple[nn.Module, Tensor, Tensor]:
    model = build("cnn-small").eval()
    model.load_state_dict(load_file(WEIGHTS))
    test = load("mnist", train=False, root=data_root).subset(slice(100))
    return model, test.pixels(slice(None)), test.y


@published
def test_2000_queries_on_published_weights_leave_what_the_original_leaves(data_root: Path) -> None:
    """88 of 100 farther than 0.3, and its mean distance to four digits."""
    model, x, y = wong(data_root)
    distance = distance_curve(model, x, y, (2000,))
    assert int((distance > 0.3).sum()) == 88
    assert distance.mean().item() == pytest.approx(0.2984, abs=5e-5)


@pytest.mark.slow
@published
def test_10_000_queries_on_published_weights_leave_what_the_original_leaves(data_root: Path) -> None:
    model, x, y = wong(data_root)
    distance = distance_curve(model, x, y, (2000, 10_000))
    assert distance.mean(0).tolist() == pytest.approx([0.2984, 0.2938], abs=5e-5)
    for queries, left in ((2000, 88), (10_000, 86)):
        found = engine.run(RayS(queries), model, x, y, Linf(0.3), Rng.batch(100))
        assert int(found.robust.sum()) == left
