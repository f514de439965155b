"""APGD point by point beside the original code (as pyautoattack has it), from the same starts, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import APGD, NewAttempts, TargetedAPGD
from atlas.attacks.apgd import AutoPGD
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat, per_example

original = pytest.importorskip("pyautoattack.autopgd_base", reason="the peer pyautoattack is not installed")

CLASSES, COUNT = 10, 40
NORMS = {Linf: "Linf", L2: "L2"}
Rows = list[Tensor]


class ShrinkThenCut(L2):
    """L2 with the projection of the original code: to the ball, and from there into the box."""

    def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
        shrink = (self.eps / self.distance(x_adv, x)).clamp(max=1)
        return (x + (x_adv - x) * per_example(shrink, x)).clamp(0, 1)


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    """The original keeps its losses and steps in the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Net(nn.Module):
    """A smooth classifier that writes down where it is asked."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        shapes = ((48, 64), (64, CLASSES))
        self.weights = [2.5 * torch.randn(a, b, generator=generator) / a**0.5 for a, b in shapes]
        self.asked: Rows = []

    def forward(self, x: Tensor) -> Tensor:
        self.asked.append(x.detach().clone())
        return torch.tanh((x.flatten(1) - 0.5) @ self.weights[0]) @ self.weights[1]


def images(spread: float) -> Tensor:
    """Pixels around 0.5; with a spread above 1 some are black or white."""
    x = torch.rand(COUNT, 3, 4, 4, generator=torch.Generator().manual_seed(4))
    return (0.5 + spread * (x - 0.5)).clamp(0, 1)


def our_points(attack: AutoPGD, x: Tensor, y: Tensor, threat: Threat) -> Rows:
    """Where the lanes look: n steps and the last look. Lane k is attempt k, modulo their number."""
    model = Net()
    attempt = torch.arange(COUNT) % attack.attempts(CLASSES)
    state = attack.start(model, NewAttempts(x, y, Rng.batch(COUNT), attempt, model(x)), threat)
    points = []
    for _ in range(attack.steps):
        state, tried, _ = attack.advance(model, state, threat)
        points.append(tried)
    return [*points, state.x_adv]


def original_points(attack: AutoPGD, x: Tensor, y: Tensor, threat: Threat, start: Tensor) -> Rows:
    model = Net()
    norm = next(name for kind, name in NORMS.items() if isinstance(threat, kind))
    settings: dict[str, Any] = {"n_iter": attack.steps, "norm": norm, "eps": threat.eps, "device": "cpu"}
    if isinstance(attack, APGD):
        theirs = original.APGDAttack(model, loss=attack.loss, **settings)
    else:
        theirs = original.APGDAttack_targeted(model, **settings)
        rank = 2 + torch.arange(COUNT) % (CLASSES - 1)
        theirs.y_target = model(x).argsort(1).gather(1, CLASSES - rank[:, None])[:, 0]
    theirs.init_hyperparam(x)
    model.asked.clear()
    theirs.attack_single_run(x, y, x_init=start)
    return model.asked


def strays(attack: AutoPGD, threat: Threat, spread: float) -> Tensor:
    """How far apart the two searches are at most, up to the first point that fools the model, [B]."""
    x, model = images(spread), Net()
    y = model(x).argmax(1)
    ours = our_points(attack, x, y, threat)
    theirs = original_points(attack, x, y, threat, ours[0])
    assert len(ours) == len(theirs) == attack.steps + 1
    right = torch.stack([model(point).argmax(1) == y for point in ours])
    assert right.all(0).any(), "some lanes are to stand to the end"
    matters = torch.cat([torch.ones(1, COUNT), right[:-1].cumprod(0)])
    apart = torch.stack([(a - b).abs().flatten(1).amax(1) for a, b in zip(ours, theirs, strict=True)])
    return (apart * matters).amax(0)


each_attack = pytest.mark.parametrize("attack", [APGD("ce"), APGD("dlr"), TargetedAPGD()], ids=str)
each_budget = pytest.mark.parametrize("steps", [100, 12])
SETTLED = 0.05
"""In the few lanes that come to rest, losses differ by rounding alone, and so does whether they rose."""


@each_attack
@each_budget
@pytest.mark.parametrize("eps", [0.02, 0.1])
def test_linf_points_are_those_of_the_original(attack: AutoPGD, steps: int, eps: float) -> None:
    far = strays(replace(attack, steps=steps), Linf(eps), spread=1.6)
    assert (far > 1e-9).double().mean() <= SETTLED


@each_attack
@each_budget
def test_l2_points_are_those_of_the_original_inside_the_box(attack: AutoPGD, steps: int) -> None:
    """To the root of a rounding error: so flat is the top of the loss on a sphere."""
    far = strays(replace(attack, steps=steps), L2(0.05), spread=0.3)
    assert (far > 1e-6).double().mean() <= SETTLED


@each_attack
@each_budget
def test_at_the_edges_of_the_box_only_the_l2_projection_differs(attack: AutoPGD, steps: int) -> None:
    attack = replace(attack, steps=steps)
    assert (strays(attack, ShrinkThenCut(0.3), spread=1.6) > 1e-9).double().mean() <= SETTLED
    assert (strays(attack, L2(0.3), spread=1.6) > 1e-3).double().mean() > 0.5


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_starts_are_spread_as_the_originals(norm: str) -> None:
    """On the face of the ball: the same share of |delta| / eps below each tenth, for both, to noise."""
    threat = Linf(0.2) if norm == "Linf" else L2(0.2)
    x, y = torch.full((4000, 1, 2, 2), 0.5), torch.zeros(4000, dtype=torch.int64)
    fresh = NewAttempts(x, y, Rng.batch(4000), y, torch.zeros(4000, CLASSES))
    ours = APGD().start(lambda x: x, fresh, threat).x_adv
    asked: Rows = []

    def model(pixels: Tensor) -> Tensor:
        asked.append(pixels.detach().clone())
        return pixels.flatten(1)

    torch.manual_seed(0)
    theirs = original.APGDAttack(model, n_iter=1, norm=norm, eps=threat.eps, device="cpu")
    theirs.init_hyperparam(x)
    theirs.attack_single_run(x, y)
    for start in (ours, asked[0]):
        torch.testing.assert_close(threat.distance(start, x), torch.full((4000,), 0.2))
    tenths = torch.linspace(0.1, 0.9, 9)
    shares = [
        ((start - x).abs().flatten() / 0.2 < tenths[:, None]).double().mean(1) for start in (ours, asked[0])
    ]
    # 16,000 pixels each: a share has a deviation of 0.004 at most, the difference of two 0.0056.
    assert (shares[0] - shares[1]).abs().max() < 5 * 0.0056
