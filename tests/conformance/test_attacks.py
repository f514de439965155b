"""One table: every registered attack keeps the same promises.

A new attack gets a row in ROWS; without one, the first test fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from atlas.attacks import (
    APGD,
    ATTACKS,
    FGSM,
    PGD,
    Attack,
    MultiTargeted,
    NewAttempts,
    RayS,
    Square,
    TargetedAPGD,
    TargetedFAB,
    TargetedShrink,
    TrainingAttack,
    Untargeted,
    engine,
)
from atlas.config import build, table_of
from atlas.errors import UsageError
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat
from atlas.training.settings import REGISTRIES

ROWS: dict[str, list[Attack]] = {
    "fgsm": [
        FGSM(),
        FGSM(clip_start=False, restarts=2),
        FGSM(objective="kl"),
        FGSM(objective="margin", relative_step=0.5),
    ],
    "pgd": [
        PGD(steps=4),
        PGD(steps=3, step_size=0.02, restarts=2, objective="margin"),
        PGD(steps=3, objective="kl", start_at="gaussian"),
        PGD(steps=3, decay=True, clip_start=False),
    ],
    "apgd": [APGD(steps=5), APGD("dlr", steps=7, restarts=2)],
    "apgd-t": [TargetedAPGD(steps=5), TargetedAPGD(targets=2, steps=7, restarts=2)],
    "fab-t": [TargetedFAB(targets=3, steps=4), TargetedFAB(targets=1, steps=2, restarts=2)],
    "square": [Square(queries=15), Square(queries=6, p=0.3, restarts=2, loss="ce")],
    "un-t": [Untargeted(steps=4, restarts=2), Untargeted(steps=3, restarts=1, optimizer="adam", decay=False)],
    "multi-t": [
        MultiTargeted(steps=2, restarts=1),
        MultiTargeted(steps=2, restarts=2, optimizer="adam", step_size=0.05),
    ],
    "rays": [RayS(queries=60)],
    "shrink-t": [TargetedShrink(steps=4), TargetedShrink(targets=1, steps=7, restarts=2, far=1.5)],
}
CASES = [attack for row in ROWS.values() for attack in row]
CLIMBING = [attack for attack in CASES if isinstance(attack, TrainingAttack)]
TASKS = {
    "grey, 10 classes": ((1, 28, 28), 10),
    "grey, 2 classes": ((1, 28, 28), 2),
    "colour, 2 classes": ((3, 8, 8), 2),
    "colour, 10 classes": ((3, 8, 8), 10),
}
COLOUR = ((3, 8, 8), 10)
COUNT = 6
each_attack = pytest.mark.parametrize("attack", CASES, ids=str)
each_climb = pytest.mark.parametrize("attack", CLIMBING, ids=str)
THREATS = [Linf(0.1), L2(0.5)]
each_threat = pytest.mark.parametrize("threat", THREATS, ids=str)
each_attack_and_threat = pytest.mark.parametrize(
    ("attack", "threat"),
    [
        pytest.param(attack, threat, id=f"{attack}-{threat}")
        for attack in CASES
        for threat in THREATS
        if isinstance(threat, attack.threats)
    ],
)
each_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())
Factory = Callable[..., Any]


def images(task: tuple[tuple[int, int, int], int], model: Any, count: int = COUNT) -> tuple[Tensor, Tensor]:
    """Images with the labels that the model gives them."""
    x = torch.rand(count, *task[0], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return x, model(x).argmax(1)


def test_every_registered_attack_has_a_row() -> None:
    assert set(ROWS) == set(ATTACKS)
    for name, row in ROWS.items():
        assert row
        assert all(type(attack) is ATTACKS[name] for attack in row)


@each_attack_and_threat
def test_the_default_device_changes_nothing(attack: Attack, threat: Threat, counted: Factory) -> None:
    """Whoever sets it to a GPU has tensors there that meet ours; meta stands in for any other device."""
    model = counted(*COLOUR)
    x, y = images(COLOUR, model)
    rng = Rng.batch(len(x), seed=0)
    expected = engine.run(attack, model, x, y, threat, rng)
    with torch.device("meta"):
        found = engine.run(attack, model, x, y, threat, rng)
        search = engine.Engine(attack, model, x, y, threat, rng)
        search.restore(search.snapshot())
    assert torch.equal(found.x_adv, expected.x_adv)
    assert torch.equal(found.attempt, expected.attempt)


def fresh(x: Tensor, y: Tensor, rng: Rng, attempt: int = 0) -> NewAttempts:
    return NewAttempts(x, y, rng, torch.full_like(y, attempt))


@each_climb
@each_task
@each_threat
def test_adversaries_are_near_images_with_a_higher_loss(
    attack: TrainingAttack, task: Any, threat: Threat, counted: Factory
) -> None:
    model = counted(*task)
    x, y = images(task, model)
    x_adv = attack.craft(model, x, y, threat, Rng.batch(COUNT))
    assert (x_adv.shape, x_adv.dtype) == (x.shape, x.dtype)
    assert threat.contains(x_adv, x).all()
    assert not x_adv.requires_grad
    state = attack.start(model, fresh(x, y, Rng.batch(COUNT)), threat)
    with torch.no_grad():
        assert (attack.loss(model(x_adv), state) > attack.loss(model(x), state)).all()


@each_climb
@each_threat
def test_same_streams_same_points(attack: TrainingAttack, threat: Threat, counted: Factory) -> None:
    model = counted(*COLOUR)
    x, y = images(COLOUR, model)
    one, same, other = (attack.craft(model, x, y, threat, Rng.batch(COUNT, seed=s)) for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@each_climb
@each_threat
def test_an_example_knows_nothing_of_the_batch(
    attack: TrainingAttack, threat: Threat, counted: Factory
) -> None:
    model, rng = counted(*COLOUR), Rng.batch(COUNT, seed=5)
    x, y = images(COLOUR, model)
    together = attack.craft(model, x, y, threat, rng)
    for some in (torch.tensor([3]), torch.tensor([5, 0, 2])):
        alone = attack.craft(model, x[some], y[some], threat, rng[some])
        torch.testing.assert_close(alone, together[some], rtol=0, atol=1e-10)


@each_climb
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_crafting_leaves_the_model_as_it_was(attack: TrainingAttack, mode: Any, counted: Factory) -> None:
    model = counted(*COLOUR, norm=True)
    x, y = images(COLOUR, model)
    model.layers[1].eval()
    before = model.snapshot()
    attack.craft(model, x, y, Linf(0.1), Rng.batch(COUNT), mode)
    assert model.snapshot() == before
    assert torch.equal(attack.craft(model, x, y, Linf(0.0), Rng.batch(COUNT)), x)


@each_attack_and_threat
@each_task
def test_it_runs_on_any_task(attack: Attack, threat: Threat, task: Any, counted: Factory) -> None:
    """Grey or in colour, with two classes or ten: what it claims is true, and near the image."""
    model = counted(*task)
    x, y = images(task, model)
    x_adv = attack(model, x, y, threat)
    assert (x_adv.shape, x_adv.dtype) == (x.shape, x.dtype)
    assert threat.contains(x_adv, x).all()
    assert not x_adv.requires_grad


@each_attack_and_threat
def test_the_model_is_exactly_as_before(attack: Attack, threat: Threat, counted: Factory) -> None:
    model = counted(*COLOUR, norm=True)
    x, y = images(COLOUR, model)
    model.layers[1].eval()
    model.layers[0].bias.requires_grad_(False)
    before, pixels = model.snapshot(), x.clone()
    attack(model, x, y, threat)
    assert model.snapshot() == before
    assert torch.equal(x, pixels)


@each_attack
def test_radius_0_leaves_the_images(attack: Attack, counted: Factory) -> None:
    model = counted(*COLOUR)
    x, y = images(COLOUR, model)
    assert torch.equal(attack(model, x, y, Linf(0.0)), x)


@each_attack_and_threat
def test_a_step_counts_and_tells_the_truth(attack: Attack, threat: Threat, counted: Factory) -> None:
    """Each step grows the counter by one, asks the model as often as it says, and gives its true answers."""
    model = counted(*COLOUR)
    x, y = images(COLOUR, model)
    state = attack.start(model, fresh(x, y, Rng.batch(COUNT)), threat)
    assert state.step.tolist() == [0] * COUNT
    step = 0
    while not attack.done(state).all():
        step += 1
        forwards = model.forwards
        state, x_tried, logits = attack.advance(model, state, threat)
        assert model.forwards - forwards == attack.forwards
        assert state.step.tolist() == [step] * COUNT
        torch.testing.assert_close(logits, model(x_tried), rtol=1e-9, atol=1e-12)
    assert step == attack.steps


@each_attack_and_threat
def test_verdicts_do_not_depend_on_batches(attack: Attack, threat: Threat, counted: Factory) -> None:
    """At a radius at which some examples fall and some stand."""
    model, rng = counted(*COLOUR, seed=1), Rng.batch(40, seed=2)
    x, y = images(COLOUR, model, 40)
    small = threat.at(threat.eps / 4)
    found = [engine.run(attack, model, x, y, small, rng, batch_size=size) for size in (1, 7, 40)]
    for outcome in found:
        assert torch.equal(outcome.attempt, found[0].attempt)
        assert torch.equal(outcome.step, found[0].step)
        assert torch.equal(outcome.queries, found[0].queries)
        wrong = model(outcome.x_adv).argmax(1) != y
        assert torch.equal(wrong, ~outcome.robust)
        assert small.contains(outcome.x_adv, x).all()
    assert 0 < int(found[0].robust.sum()) < 40


@each_attack_and_threat
def test_a_saved_attack_continues_to_the_same_end(attack: Attack, threat: Threat, counted: Factory) -> None:
    model, rng = counted(*COLOUR, seed=1), Rng.batch(40, seed=2)
    x, y = images(COLOUR, model, 40)
    first, second = (
        engine.Engine(attack, model, x, y, threat.at(threat.eps / 4), rng, batch_size=16) for _ in range(2)
    )
    for _ in range(2):
        first.step()
    second.restore({name: tensor.clone() for name, tensor in first.snapshot().items()})
    for search in (first, second):
        while not search.finished:
            search.step()
    for one, other in zip(vars(first.outcome()).values(), vars(second.outcome()).values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("attack", [a for a in CASES if hasattr(a, "restarts")], ids=str)
def test_more_restarts_fool_no_fewer(attack: Attack, counted: Factory) -> None:
    model, threat = counted(*COLOUR, seed=1), Linf(0.02)
    x, y = images(COLOUR, model, 40)
    more = replace(attack, restarts=attack.restarts + 2)  # type: ignore[type-var,attr-defined]
    one, other = (engine.run(a, model, x, y, threat, Rng.batch(40)).robust for a in (attack, more))
    assert (one | ~other).all()


@each_attack
def test_a_threat_that_is_not_its_own_is_refused(attack: Attack, counted: Factory) -> None:
    model = counted(*COLOUR)
    x, y = images(COLOUR, model)
    for threat in THREATS:
        if not isinstance(threat, attack.threats):
            with pytest.raises(UsageError, match="defined for"):
                attack(model, x, y, threat)


@each_attack
def test_its_table_builds_it_again(attack: Attack) -> None:
    assert build(Attack, table_of(attack, REGISTRIES), REGISTRIES) == attack  # type: ignore[type-abstract]
