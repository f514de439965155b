"""FGSM and PGD on linear models, whose worst case has a closed form.

For two classes and label y, f_other - f_y = s.x + c, and every objective of an attack grows with it (KL
grows with its distance from the clean value). Inside the ball alone its gain is eps times the dual norm
of s; where the pixel box cuts the ball, the optimum is found pixel by pixel (L-inf) or by one scalar
equation (L2), in numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from atlas.attacks import FGSM, PGD, Attack, engine
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

Array = NDArray[np.float64]
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
SHAPE = (1, 4, 4)
EXAMPLES = 12
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@dataclass(frozen=True)
class Problem:
    """Images, labels and a linear classifier of two classes: W [2, N], b [2]."""

    x: Tensor
    y: Tensor
    W: Tensor
    b: Tensor

    def __call__(self, pixels: Tensor) -> Tensor:
        return pixels.flatten(1) @ self.W.T + self.b

    @property
    def pixels(self) -> Array:
        return self.x.flatten(1).double().numpy()

    @property
    def slopes(self) -> Array:
        """s of each example, [B, N]."""
        s = (self.W[1] - self.W[0]).double().numpy()
        return np.where(self.y.numpy()[:, None] == 0, s, -s)

    def gain(self, x_adv: Tensor) -> Array:
        """How much f_other - f_y has grown."""
        return np.asarray((self.slopes * (x_adv.flatten(1).double().numpy() - self.pixels)).sum(1))


def problem(dtype: torch.dtype, low: float = -0.5, high: float = 1.5) -> Problem:
    """Images with pixels in [low, high], cut to the box, so that half of them lie on its edges by default.

    Slopes are kept away from 0, where a sign would be rounding.
    """
    rng = np.random.default_rng(0)
    x = np.clip(rng.uniform(low, high, (EXAMPLES, *SHAPE)), 0, 1)
    W = rng.choice([-1, 1], (2, 16)) * rng.uniform(0.05, 1, (2, 16))
    W[1] = -np.sign(W[0]) * np.abs(W[1])
    made = (x, W, rng.normal(size=2))
    x_, W_, b_ = (torch.tensor(a, dtype=dtype) for a in made)
    return Problem(x_, torch.tensor(rng.integers(2, size=EXAMPLES)), W_, b_)


def worst_linf(p: Problem, eps: float) -> Array:
    """Each pixel goes eps along its slope, or to the edge of the box."""
    return np.asarray((p.slopes * np.clip(eps * np.sign(p.slopes), -p.pixels, 1 - p.pixels)).sum(1))


def worst_l2(p: Problem, eps: float) -> Array:
    """delta = clip(t s, box) with ||delta|| = eps: the optimality condition, solved for t by bisection."""
    gains = []
    for s, x in zip(p.slopes, p.pixels, strict=True):
        low, high = 0.0, 1e4
        for _ in range(200):
            middle = (low + high) / 2
            inside = np.linalg.norm(np.clip(middle * s, -x, 1 - x)) <= eps
            low, high = (middle, high) if inside else (low, middle)
        gains.append(s @ np.clip(low * s, -x, 1 - x))
    return np.array(gains)


LINF_ATTACKS: list[Attack] = [
    FGSM(start_at="clean", relative_step=1.0),
    FGSM(relative_step=2.0),
    FGSM(relative_step=2.0, clip_start=False),
    FGSM(relative_step=2.0, objective="margin"),
    FGSM(step_size=0.7, relative_step=None),
    PGD(),
    PGD(steps=7, objective="margin"),
    PGD(steps=100, step_size=0.01, start_at="gaussian"),
    PGD(steps=40, relative_step=0.125, decay=True),
    PGD(steps=3, relative_step=1.0, restarts=3, clip_start=False),
]


@pytest.mark.parametrize("attack", LINF_ATTACKS, ids=str)
@pytest.mark.parametrize("eps", [0.05, 0.3])
@each_dtype
def test_linf(attack: Attack, eps: float, dtype: torch.dtype) -> None:
    p = problem(dtype)
    x_adv = attack.craft(p, p.x, p.y, Linf(eps), Rng.batch(EXAMPLES))
    np.testing.assert_allclose(p.gain(x_adv), worst_linf(p, eps), atol=TOLERANCE[dtype])


@each_dtype
def test_linf_gain_is_eps_times_the_l1_norm(dtype: torch.dtype) -> None:
    p, eps = problem(dtype, 0.2, 0.8), 0.15
    x_adv = PGD().craft(p, p.x, p.y, Linf(eps), Rng.batch(EXAMPLES))
    np.testing.assert_allclose(p.gain(x_adv), eps * np.abs(p.slopes).sum(1), atol=TOLERANCE[dtype])


L2_ATTACKS: list[Attack] = [
    FGSM(start_at="clean", relative_step=1.0),
    FGSM(start_at="clean", step_size=0.4, relative_step=None, objective="margin"),
    PGD(steps=200, relative_step=0.2),
    PGD(steps=200, relative_step=0.2, objective="margin", start_at="gaussian"),
]


@pytest.mark.parametrize("attack", L2_ATTACKS, ids=str)
@each_dtype
def test_l2_gain_is_eps_times_the_l2_norm(attack: Attack, dtype: torch.dtype) -> None:
    p, eps = problem(dtype, 0.4, 0.6), 0.35
    x_adv = attack.craft(p, p.x, p.y, L2(eps), Rng.batch(EXAMPLES))
    np.testing.assert_allclose(p.gain(x_adv), eps * np.linalg.norm(p.slopes, axis=1), atol=TOLERANCE[dtype])


@pytest.mark.parametrize("objective", ["ce", "margin"])
@each_dtype
def test_l2_in_an_active_box(objective: str, dtype: torch.dtype) -> None:
    """Half of the pixels cannot move along their slope: only the nearest point of ball and box gets there."""
    p, eps = problem(dtype), 0.25
    attack = PGD(steps=400, relative_step=0.2, objective=objective)
    gain = p.gain(attack.craft(p, p.x, p.y, L2(eps), Rng.batch(EXAMPLES)))
    worst = worst_l2(p, eps)
    assert (worst < eps * np.linalg.norm(p.slopes, axis=1) - 1e-3).all(), "the box is to be active"
    np.testing.assert_allclose(gain, worst, atol=TOLERANCE[dtype])


def worst(p: Problem, threat: Threat) -> Array:
    return worst_linf(p, threat.eps) if isinstance(threat, Linf) else worst_l2(p, threat.eps)


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.5)], ids=str)
def test_nothing_beats_the_closed_form(threat: Threat) -> None:
    p = problem(torch.float64)
    bound = worst(p, threat)
    for attack in (FGSM(), PGD(steps=5), PGD(steps=30, relative_step=3.0, restarts=2)):
        assert (p.gain(attack.craft(p, p.x, p.y, threat, Rng.batch(EXAMPLES))) <= bound + 1e-9).all()


def test_steps_and_step_size_from_the_clean_image() -> None:
    """The paper's PGD-20 with step 0.01 goes 0.2 and no further in a ball of 0.3."""
    p = problem(torch.float64)
    attack = PGD(steps=20, step_size=0.01, start_at="clean")
    gain = p.gain(attack.craft(p, p.x, p.y, Linf(0.3), Rng.batch(EXAMPLES)))
    np.testing.assert_allclose(gain, worst_linf(p, 0.2), atol=1e-12)


def test_decay_goes_half_as_far() -> None:
    """Steps of a (1 - k / n) for k = 0 .. n-1 sum to a (n + 1) / 2."""
    p = problem(torch.float64, 0.3, 0.7)
    attack = PGD(steps=9, step_size=0.02, start_at="clean", decay=True)
    gain = p.gain(attack.craft(p, p.x, p.y, Linf(0.3), Rng.batch(EXAMPLES)))
    np.testing.assert_allclose(gain, worst_linf(p, 0.02 * 10 / 2), atol=1e-7)


def test_several_classes_by_the_margin() -> None:
    """max_i (f_i - f_y), where one class leads the others throughout: that class's own worst case."""
    rng = np.random.default_rng(3)
    W = torch.tensor(rng.uniform(0.1, 1, (5, 16)))
    b = torch.tensor([0.0, 9.0, -50.0, -50.0, -50.0])
    x = torch.tensor(rng.uniform(0, 1, (EXAMPLES, *SHAPE)))
    y = torch.zeros(EXAMPLES, dtype=torch.int64)

    def model(pixels: Tensor) -> Tensor:
        return pixels.flatten(1) @ W.T + b

    p, eps = Problem(x, y, W[:2], b[:2]), 0.2
    x_adv = PGD(objective="margin").craft(model, x, y, Linf(eps), Rng.batch(EXAMPLES))
    np.testing.assert_allclose(p.gain(x_adv), worst_linf(p, eps), atol=1e-6)


def binary_kl(m: Array, m_adv: Array) -> Array:
    """KL(p || p') for two classes with logit differences m and m'."""
    p, q = 1 / (1 + np.exp(-m)), 1 / (1 + np.exp(-m_adv))
    return np.asarray(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)))


def both_ends(p: Problem, eps: float) -> tuple[Array, Array, Array]:
    """m, and m at the two ends that a climb of the KL may reach."""
    m = (p.slopes * p.pixels).sum(1) + np.where(p.y.numpy() == 0, 1, -1) * (p.b[1] - p.b[0]).item()
    down = Problem(p.x, 1 - p.y, p.W, p.b)
    return m, m + worst_linf(p, eps), m - worst_linf(down, eps)


def test_kl_climbs_to_one_end_and_restarts_to_the_higher() -> None:
    p, eps = problem(torch.float64), 0.2
    m, up, down = both_ends(p, eps)
    ends = np.stack([up, down])
    one = m + p.gain(PGD(objective="kl").craft(p, p.x, p.y, Linf(eps), Rng.batch(EXAMPLES)))
    assert np.abs(one - ends).min(0).max() < 1e-6
    many = PGD(objective="kl", restarts=40).craft(p, p.x, p.y, Linf(eps), Rng.batch(EXAMPLES))
    best = np.maximum(binary_kl(m, up), binary_kl(m, down))
    np.testing.assert_allclose(binary_kl(m, m + p.gain(many)), best, atol=1e-6)
    assert (binary_kl(m, one) < best - 1e-3).any(), "a single start is to miss the higher end somewhere"


@pytest.mark.parametrize(
    ("threat", "attack"),
    [
        (Linf(0.12), PGD(steps=10)),
        (Linf(0.12), FGSM(relative_step=2.0)),
        (Linf(0.12), PGD(steps=10, objective="margin", restarts=2)),
        (L2(0.5), PGD(steps=60, relative_step=0.3)),
    ],
    ids=str,
)
def test_verdicts_are_certificates(threat: Threat, attack: Attack) -> None:
    """The engine calls an example robust exactly where no point of the ball and box is misclassified."""
    rng = np.random.default_rng(11)
    W = torch.tensor(rng.normal(size=(2, 16)))
    x = torch.tensor(np.clip(rng.uniform(-0.2, 1.2, (300, *SHAPE)), 0, 1))
    centred = Problem(x, torch.zeros(300), W, -W.sum(1) / 2)
    p = Problem(x, centred(x).argmax(1), W, centred.b)
    f = p(x).numpy()
    margin = -np.abs(f[:, 1] - f[:, 0])
    reached = margin + worst(p, threat)
    outcome = engine.run(attack, p, x, p.y, threat, Rng.batch(300), batch_size=64)
    sure = np.abs(reached) > 1e-3
    assert sure.sum() > 280
    assert 60 < (reached < 0).sum() < 240, "both verdicts are to occur"
    assert (outcome.robust.numpy() == (reached < 0))[sure].all()
