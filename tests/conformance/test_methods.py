"""One table: every registered method, with zero, one or n steps as it allows, keeps the same promises.

A new method gets a row in ROWS; without one, the first test fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from atlas.attacks import FGSM, PGD, Attack
from atlas.config import build, table_of
from atlas.methods import METHODS, Method, TrainingStep
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat
from atlas.training.settings import REGISTRIES

Passes = tuple[int, int]
"""(forward, backward) passes through the model."""


class Row(NamedTuple):
    """What a method's equation costs, and what can be left out of it."""

    weights: dict[str, float]
    terms: dict[str, Passes]
    """Each term and the passes that it needs beside those before it."""
    objective: str | None = None
    """What its attack climbs; None where it has no attack."""
    needs_adversary: tuple[str, ...] = ()
    """The terms that x_adv is made for; where all of them have weight 0, none is made."""
    random: bool = True
    """Whether the loss depends on random numbers."""


ROWS = {
    "natural": Row({}, {"ce": (1, 0)}, random=False),
    "jac": Row({"alpha": 0.5}, {"ce": (1, 0), "jac": (0, 1)}),
    "adv": Row({}, {"ce": (1, 0)}, "ce", ("ce",)),
    "trades": Row({"beta": 2.0}, {"ce": (1, 0), "kl": (1, 0)}, "kl", ("kl",)),
    "atlas": Row({"alpha": 0.1, "beta": 5.0}, {"ce": (1, 0), "jac": (0, 1), "kl": (1, 0)}, "ce", ("ce",)),
    "atlas_l": Row({"alpha": 0.1}, {"ce": (1, 0), "jac": (0, 1)}, "ce", ("ce",)),
    "atlas_g": Row({"beta": 5.0}, {"ce": (1, 0), "kl": (1, 0)}, "ce", ("ce",)),
    "trades_jac": Row(
        {"alpha": 0.1, "beta": 0.5}, {"ce": (1, 0), "jac": (0, 1), "kl": (1, 0)}, "kl", ("kl",)
    ),
}

# An attack and the passes of one climb with each objective: KL also looks once at the clean images.
ATTACKS: dict[str, tuple[Attack, dict[str, Passes]]] = {
    "one step": (FGSM(), {"ce": (1, 1), "kl": (2, 1)}),
    "one step, unclipped": (FGSM(clip_start=False), {"ce": (1, 1), "kl": (2, 1)}),
    "three steps": (PGD(steps=3), {"ce": (3, 3), "kl": (4, 3)}),
    "two restarts": (PGD(steps=2, restarts=2), {"ce": (6, 4), "kl": (8, 4)}),
}


class Case(NamedTuple):
    name: str
    method: Method
    attack_passes: Passes

    def passes(self, *without: str) -> Passes:
        """What `loss` needs by the equation, some terms left out."""
        row = ROWS[self.name]
        kept = [cost for term, cost in row.terms.items() if term not in without]
        if set(row.needs_adversary) - set(without):
            kept.append(self.attack_passes)
        return sum(f for f, _ in kept), sum(b for _, b in kept)


def cases() -> dict[str, Case]:
    made = {}
    for name, row in ROWS.items():
        if row.objective is None:
            made[f"{name}, zero steps"] = Case(name, METHODS[name](**row.weights), (0, 0))
            continue
        for kind, (attack, passes) in ATTACKS.items():
            attack = replace(attack, objective=row.objective)  # type: ignore[type-var]
            method = METHODS[name](**row.weights, attack=attack)
            made[f"{name}, {kind}"] = Case(name, method, passes[row.objective])
    return made


CASES = cases()
TASKS = {
    "grey, 10 classes": ((1, 28, 28), 10),
    "grey, 2 classes": ((1, 28, 28), 2),
    "colour, 2 classes": ((3, 8, 8), 2),
    "colour, 10 classes": ((3, 8, 8), 10),
}
COLOUR = ((3, 8, 8), 10)
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
each_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())
Factory = Callable[..., Any]
EPS = Linf(0.1)


def images(task: tuple[tuple[int, int, int], int], count: int = 5) -> tuple[Tensor, Tensor]:
    shape, classes = task
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, *shape, dtype=torch.float64, generator=generator)
    return x, torch.randint(classes, (count,), generator=generator)


def test_every_registered_method_has_a_row() -> None:
    assert set(ROWS) == set(METHODS)


@each_case
@each_task
@pytest.mark.parametrize("threat", [EPS, L2(0.5)], ids=str)
def test_finite_loss_and_a_gradient_for_every_weight(
    case: Case, task: Any, threat: Threat, counted: Factory
) -> None:
    """All terms but the cross-entropy leave the last bias alone; together none is left out."""
    model, (x, y) = counted(*task), images(task)
    frozen = model.layers[0].bias.requires_grad_(False)
    loss = case.method.loss(model, x, y, threat=threat, rng=Rng.batch(len(y)))
    assert loss.shape == ()
    assert loss.isfinite()
    loss.backward()
    for p in model.parameters():
        if p is frozen:
            assert p.grad is None
            continue
        assert p.grad is not None
        assert p.grad.isfinite().all()
        assert p.grad.abs().sum() > 0


@each_case
def test_same_streams_same_loss(case: Case, counted: Factory) -> None:
    model, (x, y) = counted(*COLOUR), images(COLOUR)
    first, again, other = (
        case.method.loss(model, x, y, threat=EPS, rng=Rng.batch(len(y), seed=seed)).item()
        for seed in (1, 1, 2)
    )
    assert first == again
    assert (first != other) == ROWS[case.name].random


@each_case
def test_terms_are_per_example_and_know_nothing_of_the_batch(case: Case, counted: Factory) -> None:
    model, (x, y), rng = counted(*COLOUR), images(COLOUR, 7), Rng.batch(7, seed=3)

    def terms(lanes: Tensor) -> dict[str, Tensor]:
        step = TrainingStep(EPS, rng[lanes])
        x_adv = case.method.craft(model, x[lanes], y[lanes], step.fold("attack"))
        return case.method.terms(model, x[lanes], x_adv, y[lanes], step.fold("terms")).losses

    together = terms(torch.arange(7))
    assert next(iter(together)) == "ce"
    assert list(together) == list(ROWS[case.name].terms)
    for lanes in (torch.tensor([4]), torch.tensor([6, 0, 3])):
        alone = terms(lanes)
        for name, values in together.items():
            assert values.shape == (7,)
            assert (values >= 0).all()
            torch.testing.assert_close(alone[name], values[lanes], rtol=1e-9, atol=1e-12)


@each_case
def test_costs_what_its_equation_needs(case: Case, counted: Factory) -> None:
    model, (x, y) = counted(*COLOUR), images(COLOUR)
    case.method.loss(model, x, y, threat=EPS, rng=Rng.batch(len(y)))
    assert model.passes() == case.passes()


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "jac" in row.terms])
def test_a_secant_costs_a_forward_pass_where_the_projection_costs_a_derivative(
    name: str, counted: Factory
) -> None:
    (x, y), passes = images(COLOUR), []
    for jacobian in ("projection", "secant"):
        model = counted(*COLOUR)
        METHODS[name](**ROWS[name].weights, jacobian=jacobian).loss(model, x, y, threat=EPS)
        passes.append(model.passes())
    (forward, backward), secant = passes
    assert secant == (forward + 1, backward - 1)


@each_case
def test_a_term_without_weight_costs_nothing(case: Case, counted: Factory) -> None:
    x, y = images(COLOUR)
    for weight in ROWS[case.name].weights:
        model = counted(*COLOUR)
        without = replace(case.method, **{weight: 0.0})  # type: ignore[type-var]
        (term,) = (name for name, value in without.weights.items() if value != case.method.weights[name])
        without.loss(model, x, y, threat=EPS, rng=Rng.batch(len(y)))
        assert model.passes() == case.passes(term)
        assert term not in without.terms(model, x, x, y, TrainingStep(EPS, Rng.batch(len(y)))).losses


@each_case
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_crafting_leaves_the_model_exactly_as_it_was(case: Case, mode: Any, counted: Factory) -> None:
    model, (x, y) = counted(*COLOUR, norm=True), images(COLOUR)
    model.layers[1].eval()
    model.layers[0].bias.requires_grad_(False)
    before = model.snapshot()
    x_adv = case.method.craft(model, x, y, TrainingStep(EPS, Rng.batch(len(y))), mode)
    assert model.snapshot() == before
    assert EPS.contains(x_adv, x).all()
    assert not x_adv.requires_grad


@each_case
def test_the_loss_neither_changes_modes_nor_leaves_gradients(case: Case, counted: Factory) -> None:
    model, (x, y) = counted(*COLOUR, norm=True).eval(), images(COLOUR)
    before, pixels = model.snapshot(), x.clone()
    case.method.loss(model, x, y, threat=EPS, rng=Rng.batch(len(y)))
    assert model.snapshot() == before
    assert torch.equal(x, pixels)
    assert not x.requires_grad
    model.train()
    case.method.loss(model, x, y, threat=EPS, rng=Rng.batch(len(y)))
    assert all(m.training for m in model.modules())


@each_case
def test_a_step_down_its_gradient_lowers_the_loss(case: Case, counted: Factory) -> None:
    model, (x, y), step = counted(*COLOUR), images(COLOUR), TrainingStep(EPS, Rng.batch(5))
    x_adv = case.method.craft(model, x, y, step)

    def loss() -> Tensor:
        return case.method.weigh(case.method.terms(model, x, x_adv, y, step).losses)

    before = loss()
    gradients = torch.autograd.grad(before, list(model.parameters()))
    squared = sum(g.square().sum() for g in gradients)
    with torch.no_grad():
        for p, g in zip(model.parameters(), gradients, strict=True):
            p.sub_(1e-6 * g)
    fall = (before - loss()).item()
    assert fall == pytest.approx(1e-6 * float(squared), rel=0.05)


@each_case
def test_its_table_builds_it_again(case: Case) -> None:
    assert build(Method, table_of(case.method, REGISTRIES), REGISTRIES) == case.method  # type: ignore[type-abstract]
