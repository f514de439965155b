"""FGSM and PGD, step by step. Their closed-form worst cases are in tests/oracle/test_linear_worst_case.py."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import FGSM, PGD, NewAttempts, engine, pgd
from atlas.attacks.model_variants import averaged
from atlas.errors import UsageError
from atlas.rng import Rng
from atlas.threat import L2, TOLERANCE, Linf, Threat

COUNT = 20
THREATS = [Linf(0.3), L2(1.0)]
each_threat = pytest.mark.parametrize("threat", THREATS, ids=str)


def net(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4)).to(dtype)


def images(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = (1.4 * torch.rand(COUNT, 1, 4, 4, dtype=dtype, generator=generator) - 0.2).clamp_(0, 1)
    return x, torch.randint(4, (COUNT,), generator=generator)


def fresh(x: Tensor, y: Tensor, rng: Rng) -> NewAttempts:
    return NewAttempts(x, y, rng, torch.zeros_like(y))


def iterates(attack: PGD, model: nn.Module, x: Tensor, y: Tensor, threat: Threat, rng: Rng) -> list[Tensor]:
    state = attack.start(model, fresh(x, y, rng), threat)
    points = [state.x_adv]
    for _ in range(attack.steps):
        state = attack.advance(model, state, threat).state
        points.append(state.x_adv)
    return points


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"steps": 0}, "steps must be .*, got 0"),
        ({"restarts": 0}, "restarts must be .*, got 0"),
        ({"step_size": 0.0}, "step(_size)? must be > 0 and finite, got 0.0"),
        ({"step_size": -0.1}, "step(_size)? must be > 0 and finite, got -0.1"),
        ({"relative_step": math.nan}, "step(_size)? must be > 0 and finite, got nan"),
        ({"relative_step": math.inf}, "step(_size)? must be > 0 and finite, got inf"),
        ({"step_size": 0.1, "relative_step": 1.0}, "exclude each other"),
        ({"objective": "crossentropy"}, "unknown objective 'crossentropy'"),
        ({"objective": "margn"}, "did you mean 'margin'"),
        ({"start_at": "gausian"}, "did you mean 'gaussian'"),
    ],
    ids=str,
)
def test_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PGD(**wrong)


FGSM_STEPS: dict[str, dict[str, float]] = {
    "default": {},
    "relative": {"relative_step": 1.25},
    "pixels": {"step_size": 0.1},
}


def test_fgsm_is_one_step_of_a_quarter_more_than_eps() -> None:
    assert (FGSM().steps, FGSM().start_at) == (1, "uniform")
    model, (x, y), threat = net(), images(), Linf(0.3)
    steps = {k: FGSM(**v).craft(model, x, y, threat, Rng.batch(COUNT)) for k, v in FGSM_STEPS.items()}
    assert torch.equal(steps["default"], steps["relative"])
    assert not torch.equal(steps["default"], steps["pixels"])
    with pytest.raises(TypeError):
        FGSM(steps=2)  # type: ignore[call-arg]


@each_threat
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "attack",
    [
        FGSM(),
        FGSM(clip_start=False, relative_step=30.0),
        PGD(steps=6, relative_step=1.7),
        PGD(steps=6, step_size=0.05, clip_start=False, objective="margin"),
        PGD(steps=6, relative_step=0.4, start_at="gaussian", objective="kl"),
        PGD(steps=6, relative_step=0.4, start_at="clean", decay=True),
    ],
    ids=str,
)
def test_never_leaves_ball_or_box(attack: PGD, threat: Threat, dtype: torch.dtype) -> None:
    """Only the start may leave the box, and only where it is told not to be clipped."""
    x, y = images(dtype)
    start, *rest = iterates(attack, net(dtype=dtype), x, y, threat, Rng.batch(COUNT))
    for point in rest:
        assert threat.contains(point, x).all()
        assert ((point >= 0) & (point <= 1)).all()
        assert (threat.distance(point, x) <= threat.eps + TOLERANCE).all()
    assert (threat.distance(start, x) <= threat.eps + TOLERANCE).all()
    outside = bool(((start < 0) | (start > 1)).any())
    assert outside == (attack.start_at == "uniform" and not attack.clip_start)


@pytest.mark.parametrize(
    ("attack", "lengths"),
    [
        (PGD(steps=10), [0.25] * 10),
        (PGD(steps=4, relative_step=0.7), [0.7] * 4),
        (PGD(steps=4, step_size=0.05), [0.25] * 4),
        (PGD(steps=4, relative_step=0.8, decay=True), [0.8, 0.6, 0.4, 0.2]),
        (FGSM(), [1.25]),
    ],
    ids=str,
)
def test_step_lengths_in_units_of_eps(attack: PGD, lengths: list[float]) -> None:
    """Seen at a threat whose projection does nothing, so that the whole step shows. eps is 0.2."""

    class Open(Linf):
        def project(self, x_adv: Tensor, x: Tensor) -> Tensor:
            return x_adv.clone()

    model, (x, y) = net(), images()
    points = iterates(replace(attack, start_at="clean"), model, x, y, Open(0.2), Rng.batch(COUNT))
    steps = [(b - a).abs().amax() / 0.2 for a, b in pairwise(points)]
    assert [step.item() for step in steps] == pytest.approx(lengths, rel=1e-6)


def test_gaussian_start_is_a_thousandth_of_a_normal() -> None:
    x = torch.full((4000, 1, 2, 2), 0.5, dtype=torch.float64)
    y = torch.zeros(4000, dtype=torch.int64)
    attack = PGD(start_at="gaussian")
    start = attack.start(net(), fresh(x, y, Rng.batch(4000)), Linf(0.3)).x_adv
    unit = (start - x) / 0.001
    assert abs(unit.mean().item()) < 5 / math.sqrt(16_000)
    assert abs(unit.square().mean().item() - 1) < 5 * math.sqrt(2 / 16_000)
    tight = attack.start(net(), fresh(x, y, Rng.batch(4000)), Linf(0.0005)).x_adv
    assert Linf(0.0005).contains(tight, x).all()


@each_threat
def test_kl_has_no_slope_at_the_image_itself(threat: Threat) -> None:
    """TRADES's objective is least at x, so its climb cannot start there; a thousandth of noise is enough.

    The logits at x are all 0 here, so that no rounding hides the zero.
    """
    x, y = images()
    model = net()
    model[1].bias.data.zero_()
    model[3].bias.data.zero_()

    def around_x(pixels: Tensor) -> Tensor:
        return model(pixels - x)  # type: ignore[no-any-return]

    at_x = x.clone().requires_grad_()
    attack = PGD(steps=8, objective="kl", start_at="gaussian")
    state = attack.start(around_x, fresh(x, y, Rng.batch(COUNT)), threat)
    (slope,) = torch.autograd.grad(attack.loss(around_x(at_x), state).sum(), at_x)
    assert slope.abs().max() == 0
    moved = attack.craft(around_x, x, y, threat, Rng.batch(COUNT))
    assert (threat.distance(moved, x) > 0.5 * threat.eps).all()
    with pytest.raises(UsageError, match="no gradient at x"):
        replace(attack, start_at="clean")


@pytest.mark.parametrize("objective", ["ce", "kl", "margin"])
def test_restarts_keep_the_highest_loss(objective: str) -> None:
    model, (x, y) = net(3), images()
    attack = PGD(steps=2, objective=objective, restarts=4)
    rng, threat = Rng.batch(COUNT, seed=1), Linf(0.3)
    ends = [iterates(attack, model, x, y, threat, rng.fold("restart", k))[-1] for k in range(4)]
    state = attack.start(model, fresh(x, y, rng), threat)
    losses = torch.stack([attack.loss(model(end), state) for end in ends]).detach()
    best = losses.argmax(0)
    assert len(best.unique()) > 1, "several restarts are to win somewhere"
    wanted = torch.stack([ends[k][i] for i, k in enumerate(best.tolist())])
    torch.testing.assert_close(attack.craft(model, x, y, threat, rng), wanted, rtol=0, atol=1e-12)


def test_radius_0_asks_the_model_nothing() -> None:
    x, y = images()

    def never(pixels: Tensor) -> Tensor:
        raise AssertionError("asked")

    assert torch.equal(PGD().craft(never, x, y, Linf(0.0), Rng.batch(COUNT)), x)


def test_lanes_of_a_state() -> None:
    model, (x, y) = net(), images()
    state = PGD(objective="kl").start(model, fresh(x, y, Rng.batch(COUNT)), Linf(0.1))
    some, rest = state.select(torch.arange(5)), state.select(torch.arange(5, COUNT))
    assert (len(some), len(rest), len(state)) == (5, COUNT - 5, COUNT)
    back = some.join(rest)
    for name in ("x", "y", "x_adv", "step", "logits"):
        assert torch.equal(getattr(back, name), getattr(state, name))
    bare = PGD().start(model, fresh(x, y, Rng.batch(COUNT)), Linf(0.1))
    assert bare.select(torch.arange(2)).join(bare).logits is None


class Valley(nn.Module):
    """One pixel each, and two logits whose difference, the loss's direction, turns round at c."""

    def __init__(self, c: float) -> None:
        super().__init__()
        self.c, self.asked = c, 0

    def forward(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        height = 5 + (x.flatten(1) - self.c).abs()
        return torch.cat([0 * height, -height], 1)


@pytest.mark.parametrize("steps", [300, 301, 331])
@pytest.mark.parametrize("restarts", [1, 2])
def test_a_climb_in_circles_ends_early_where_all_steps_would_have_ended(steps: int, restarts: int) -> None:
    """By a loop of our own: around c by 2 points in turns, for ever, and nobody is fooled."""
    c, eps, size = 0.5, 0.2, 0.03
    x = torch.tensor([0.5, 0.52, 0.45, 0.9, 0.05], dtype=torch.float64).reshape(-1, 1, 1, 1)
    y = torch.zeros(len(x), dtype=torch.int64)
    model, rng = Valley(c), Rng.batch(len(x))
    outcome = engine.run(PGD(steps=steps, step_size=size, restarts=restarts), model, x, y, Linf(eps), rng)
    assert outcome.robust.all()
    start = rng.fold("restart", torch.full_like(y, restarts - 1))
    point = Linf(eps).random_start(x, start)
    for _ in range(steps):
        up = (c - point).sign()
        point = torch.maximum(torch.minimum(point + size * up, x + eps), x - eps).clamp(0, 1)
    torch.testing.assert_close(outcome.x_adv, point, rtol=0, atol=1e-12)
    assert model.asked < restarts * len(x) * 120, "and not all the steps were made"
    assert (outcome.queries == restarts * (steps + 1)).all(), "those of the whole budget"


def test_watching_changes_no_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network whose climbs end in circles of many lengths, and not all of them do."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model = model.append(nn.Linear(64, 4)).double()
    x, _ = images()
    y = model(x).argmax(1)
    asked = 0

    def count(module: nn.Module, args: object, logits: Tensor) -> None:
        nonlocal asked
        asked += len(logits)

    model.register_forward_hook(count)
    attack, rng = PGD(steps=1000, step_size=0.01, restarts=2), Rng.batch(len(x))
    found = []
    for long in (pgd.LONG, 10**9):
        monkeypatch.setattr(pgd, "LONG", long)
        asked = 0
        found.append((engine.run(attack, model, x, y, Linf(0.08), rng), asked))
    (watched, few), (whole, all_of_them) = found
    assert few < 0.7 * all_of_them
    assert 0 < whole.robust.sum() < len(x)
    for name in ("attempt", "step", "queries"):
        assert torch.equal(getattr(watched, name), getattr(whole, name)), name
    torch.testing.assert_close(watched.x_adv, whole.x_adv, rtol=0, atol=1e-9)
    torch.testing.assert_close(watched.margin, whole.margin, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("attack", "random", "watched"),
    [
        (PGD(steps=200), False, True),
        (PGD(steps=99), False, False),
        (PGD(steps=200, decay=True), False, False),
        (PGD(steps=200), True, False),
    ],
)
def test_only_long_climbs_of_even_steps_on_a_steady_model_are_watched(
    attack: PGD, random: bool, watched: bool
) -> None:
    x, y = images()
    model = averaged(net(), 2) if random else net()
    state = attack.start(model, fresh(x, y, Rng.batch(len(x))), Linf(0.1))
    assert (state.mark is not None) == (state.end is not None) == watched


def test_a_state_of_a_version_that_did_not_watch_continues_unwatched() -> None:
    model, (x, y) = net(), images()
    engines = [
        engine.Engine(PGD(steps=120), model, x, y, Linf(0.05), Rng.batch(len(x)), batch_size=8)
        for _ in range(2)
    ]
    for _ in range(40):
        engines[0].step()
    older = {k: v for k, v in engines[0].snapshot().items() if not k.endswith((".mark", ".end"))}
    engines[1].restore(older)
    assert engines[1].lanes is not None
    assert engines[1].lanes.state.tensors().keys() == {"x", "y", "x_adv", "step"}
    for one in engines:
        while not one.finished:
            one.step()
    here, there = (one.outcome() for one in engines)
    assert torch.equal(here.attempt, there.attempt)
    torch.testing.assert_close(here.x_adv, there.x_adv, rtol=0, atol=1e-9)
