"""Methods as values. Equations: tests/oracle/test_loss_terms.py; promises: tests/conformance."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import FGSM, PGD
from atlas.errors import AtlasError, UsageError
from atlas.methods import (
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
from atlas.threat import L2, Linf, Threat

STEP = TrainingStep(Linf(0.3), Rng.batch(6))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).double()


def images(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, 1, 4, 4, dtype=torch.float64, generator=generator), torch.arange(count) % 3


@pytest.mark.parametrize("weight", [-1e-9, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("make", "term"),
    [
        (lambda w: Jac(alpha=w), "jac"),
        (lambda w: Trades(beta=w), "kl"),
        (lambda w: Atlas(alpha=w, beta=1.0), "jac"),
        (lambda w: Atlas(alpha=1.0, beta=w), "kl"),
        (lambda w: atlas_l(alpha=w), "jac"),
        (lambda w: atlas_g(beta=w), "kl"),
        (lambda w: TradesJac(alpha=w), "jac"),
        (lambda w: TradesJac(beta=w), "kl"),
    ],
    ids=["jac", "trades", "atlas alpha", "atlas beta", "atlas_l", "atlas_g", "tj alpha", "tj beta"],
)
def test_impossible_weights(make: Callable[[float], Method], term: str, weight: float) -> None:
    with pytest.raises(UsageError, match=f"the weight of {term} must be >= 0 and finite, got {weight}"):
        make(weight)


@pytest.mark.parametrize("projections", [0, -1, "all", 2.5])
@pytest.mark.parametrize("kind", [Jac, TradesJac, partial(Atlas, 0.1, 1.0)])
def test_impossible_projections_are_refused_when_built(
    kind: Callable[..., Method], projections: object
) -> None:
    with pytest.raises(UsageError, match=r"projections must be an integer (>= 1|or 'exact'), got"):
        kind(projections=projections)


def test_the_halves_of_atlas() -> None:
    assert atlas_l(2e-4, FGSM(), 3) == Atlas(2e-4, 0.0, projections=3)
    assert atlas_g(5.0, PGD()) == Atlas(0.0, 5.0, PGD())


def test_what_each_trains_on_by_default() -> None:
    """One-step methods by default, TRADES on the KL, and neither natural training nor JAC has an attack."""
    assert Natural().attack is None
    assert Jac().attack is None
    assert Adv().attack == Atlas(0.1, 0.1).attack == Trades().attack == TradesJac().attack == FGSM()
    assert FGSM().with_default_objective("kl") == FGSM(objective="kl")
    assert FGSM(objective="margin").with_default_objective("kl") == FGSM(objective="margin"), (
        "what one asks for stays"
    )
    assert (Adv.objective, Atlas.objective, Trades.objective, TradesJac.objective) == ("ce", "ce", "kl", "kl")


@pytest.mark.parametrize("method", [Natural(), Jac()], ids=str)
def test_zero_step_methods_craft_nothing(method: Method) -> None:
    x, y = images()

    def never(pixels: Tensor) -> Tensor:
        raise AssertionError("asked")

    assert method.craft(never, x, y, STEP) is x


@pytest.mark.parametrize("method", [Trades(beta=0.0), TradesJac(alpha=0.1, beta=0.0)], ids=str)
def test_trades_without_its_kl_makes_no_adversary(method: Method) -> None:
    x, y = images()

    def never(pixels: Tensor) -> Tensor:
        raise AssertionError("asked")

    assert method.craft(never, x, y, STEP) is x
    assert "kl" not in method.terms(net(), x, x, y, STEP).losses


@pytest.mark.parametrize(
    ("method", "at"),
    [
        (Natural(), "x"),
        (Jac(), "x"),
        (Adv(), "x_adv"),
        (Trades(), "x_adv"),
        (Atlas(0.1, 1.0), "x_adv"),
        (Atlas(0.0, 1.0), "x_adv"),
        (TradesJac(), "x_adv"),
        (Trades(beta=0.0), "x"),
    ],
    ids=str,
)
def test_logits_are_those_on_the_images_trained_on(method: Method, at: str) -> None:
    model, (x, y) = net(), images()
    x_adv = (x + 0.3).clamp(0, 1)
    _, logits = method.terms(model, x, x_adv, y, STEP)
    torch.testing.assert_close(logits, model({"x": x, "x_adv": x_adv}[at]))


def test_weigh_leaves_cross_entropy_out_of_the_ramp() -> None:
    """A.3 scales alpha and beta by eps_now / eps_final, and nothing else."""
    method = Atlas(alpha=0.5, beta=3.0)
    losses = {"ce": torch.tensor([1.0, 3.0]), "jac": torch.tensor([4.0, 8.0]), "kl": torch.tensor([0.5, 1.5])}
    assert method.weigh(losses, 0.0).item() == pytest.approx(2.0)
    assert method.weigh(losses, 0.5).item() == pytest.approx(2.0 + 0.5 * (0.5 * 6.0 + 3.0 * 1.0))
    assert method.weigh(losses).item() == pytest.approx(2.0 + 0.5 * 6.0 + 3.0 * 1.0)


def test_attack_and_projection_have_streams_of_their_own() -> None:
    """Another start does not change the directions that the Jacobian is projected on, nor the reverse."""
    model, (x, y) = net(), images()
    method = Atlas(alpha=1.0, beta=0.0)
    step, other = (TrainingStep(Linf(0.1), Rng.batch(6, seed=seed)) for seed in (1, 2))
    x_adv = method.craft(model, x, y, step.fold("attack"))
    terms = method.terms(model, x, x_adv, y, step.fold("terms"))
    assert method.loss(model, x, y, threat=Linf(0.1), rng=step.rng) == method.weigh(terms.losses)
    again = method.terms(model, x, x_adv, y, other.fold("terms")).losses
    assert torch.equal(again["ce"], terms.losses["ce"])
    assert not torch.equal(again["jac"], terms.losses["jac"])


@pytest.mark.parametrize(
    ("y", "threat", "message"),
    [
        (torch.full((4,), -100), Linf(0.1), "labels must be >= 0, got labels from -100 to -100"),
        (torch.zeros(4), Linf(0.1), "expected images .* and integer labels"),
        (torch.zeros(3, dtype=torch.int64), Linf(0.1), "expected images .* and integer labels"),
        (torch.zeros(4, dtype=torch.int64), 0.1, "threat"),
    ],
)
def test_a_custom_loop_is_told_what_is_wrong(y: Tensor, threat: object, message: str) -> None:
    """Cross-entropy ignores a label of -100 without a word, and the loss would be 0."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 3))
    with pytest.raises(AtlasError, match=message):
        Adv().loss(model, torch.rand(4, 1, 3, 3), y, threat=threat, rng=Rng.batch(4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"h": 0}, "h"),
        ({"h": math.inf}, "h"),
        ({"jacobian_every": 0}, "jacobian_every"),
        ({"jacobian": "tangent"}, "jacobian"),
    ],
)
def test_impossible_settings_of_the_local_term(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Jac(**settings)


@pytest.mark.parametrize("jacobian", ["projection", "secant"])
def test_a_local_term_of_every_fourth_step_weighs_four_times_as_much(jacobian: Any) -> None:
    """So its mean over the steps is that of a term in each of them."""
    model, (x, y) = net(), images()
    rng, threat = Rng.batch(6), Linf(0.3)
    each, fourth = (Atlas(0.1, 0.0, jacobian=jacobian, jacobian_every=k) for k in (1, 4))
    for number in range(9):
        step = TrainingStep(threat, rng, number)
        found = fourth.terms(model, x, x, y, step).losses
        wanted = each.terms(model, x, x, y, step).losses
        assert torch.equal(found["ce"], wanted["ce"])
        if number % 4:
            assert "jac" not in found
        else:
            torch.testing.assert_close(found["jac"], 4 * wanted["jac"])


@pytest.mark.parametrize("threat", [Linf(0.3), L2(1.2)])
def test_the_length_of_the_secant_follows_eps(threat: Threat) -> None:
    """h eps in each pixel, under L2 spread over all of them, and never so short that rounding counts."""
    seen: list[Tensor] = []

    def model(at: Tensor) -> Tensor:
        seen.append(at)
        return at.flatten(1)

    x, y = images(512)
    Jac(jacobian="secant", h=0.5).terms(model, x, x, y, TrainingStep(threat, Rng.batch(512)))
    spread = (seen[1] - seen[0]).std().item()
    assert spread == pytest.approx(0.15, rel=0.03), "16 pixels: 0.5 * 1.2 / 4"
    seen.clear()
    Jac(jacobian="secant").terms(model, x, x, y, TrainingStep(threat.at(0.0), Rng.batch(512)))
    assert (seen[1] - seen[0]).std().item() == pytest.approx(1e-3, rel=0.03)
