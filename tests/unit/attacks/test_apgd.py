"""APGD's schedule, starts, targets and lanes. Its points are held to the original's in tests/oracle."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import APGD, NewAttempts, TargetedAPGD, engine
from atlas.attacks.apgd import APGDState, AutoPGD, check_windows
from atlas.errors import UsageError
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

COUNT = 12
each_threat = pytest.mark.parametrize("threat", [Linf(0.1), L2(0.4)], ids=str)


def net(classes: int = 5) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(12, 30), nn.Tanh(), nn.Linear(30, classes)
    return nn.Sequential(*layers).double().requires_grad_(False)


def fresh(model: nn.Module, attempt: int = 0, seed: int = 0) -> NewAttempts:
    x = torch.rand(COUNT, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    y = model(x).argmax(1)
    return NewAttempts(x, y, Rng.lanes(seed, torch.arange(COUNT)), torch.full_like(y, attempt), model(x))


def run(attack: AutoPGD, model: nn.Module, state: APGDState, threat: Threat, steps: int) -> APGDState:
    for _ in range(steps):
        state = attack.advance(model, state, threat).state
    return state


@pytest.mark.parametrize(
    ("steps", "windows"),
    [
        (100, [22, 19, 16, 13, 10, 7, 6, 6]),
        (50, [11, 10, 9, 8, 7]),
        (10, [2, 1, 1, 1, 1, 1, 1, 1, 1]),
        (3, [1, 1, 1]),
        (1, [1]),
    ],
)
def test_check_windows(steps: int, windows: list[int]) -> None:
    assert check_windows(steps) == windows


class Check(NamedTuple):
    """What a lane of 100 steps knows at a step, and whether it is to be halved there."""

    step: int
    rises: int
    halved: bool
    loss_checked: float
    loss_best: float
    halve: bool


CHECKS = [
    # The first window has 22 steps, 75% of which are 16.5; the next 19 end at step 41, 75% are 14.25.
    Check(22, 16, True, 0.0, 1.0, halve=True),
    Check(22, 17, True, 0.0, 1.0, halve=False),
    Check(22, 17, True, 0.0, -1.0, halve=False),  # a new lane counts as halved, whatever its best loss
    Check(41, 15, False, 1.0, 1.0, halve=True),
    Check(41, 15, False, 1.0, 2.0, halve=False),
    Check(41, 15, True, 1.0, 1.0, halve=False),
    Check(41, 14, True, 1.0, 2.0, halve=True),
    Check(40, 0, False, 1.0, 2.0, halve=False),  # no window ends here
    Check(99, 4, False, 1.0, 2.0, halve=True),
    Check(99, 5, False, 1.0, 2.0, halve=False),
]


def test_when_a_step_is_halved() -> None:
    given = fresh(net())
    some = slice(len(CHECKS))
    given = replace(given, x=given.x[some], y=given.y[some], attempt=given.attempt[some], rng=given.rng[some])
    columns = {name: torch.tensor([getattr(row, name) for row in CHECKS]) for name in Check._fields}
    halve = columns.pop("halve")
    new = APGD().start(net(), given, Linf(0.1))
    assert new.halved.all()
    before = replace(new, **columns)
    after, back = APGD()._check(before)
    assert back.tolist() == halve.tolist()
    torch.testing.assert_close(after.size, torch.where(halve, 0.1, 0.2).double())
    due = before.step != 40
    assert after.rises.tolist() == before.rises.masked_fill(due, 0).tolist()
    assert after.halved.tolist() == torch.where(due, halve, before.halved).tolist()
    assert after.loss_checked.tolist() == torch.where(due, before.loss_best, before.loss_checked).tolist()


@each_threat
def test_starts_lie_on_the_face_of_the_ball(threat: Threat) -> None:
    """Where the box does not cut; L-inf: one entry of each image is at +-eps, the others anywhere below."""
    given = fresh(net())
    given = replace(given, x=torch.full_like(given.x, 0.5))
    start = APGD().start(net(), given, threat).x_adv
    torch.testing.assert_close(threat.distance(start, given.x), torch.full((COUNT,), threat.eps).double())
    other = APGD().start(net(), replace(given, rng=given.rng.fold(1)), threat).x_adv
    assert (start != other).flatten(1).any(1).all()


@each_threat
def test_starts_are_cut_by_the_box(threat: Threat) -> None:
    given = fresh(net())
    given = replace(given, x=given.x.round())
    assert threat.contains(
        APGD().start(net(), given, threat).x_adv, given.x, 0.0 if threat == Linf(0.1) else 1e-9
    ).all()


@each_threat
@pytest.mark.parametrize("attack", [APGD(steps=20), APGD("dlr", steps=20), TargetedAPGD(steps=20)], ids=str)
def test_lanes_at_different_steps_share_a_batch(attack: AutoPGD, threat: Threat) -> None:
    """Lanes that have come 0, 3 and 9 steps go 11 further together as they do alone, to the last field."""
    model = net()
    parts = [
        run(attack, model, attack.start(model, fresh(model, k, k), threat), threat, steps)
        for k, steps in enumerate((0, 3, 9))
    ]
    together = parts[0].join(parts[1]).join(parts[2])
    order = torch.randperm(3 * COUNT, generator=torch.Generator().manual_seed(1))
    ended = run(attack, model, together.select(order), threat, 11).select(order.argsort())
    for k, part in enumerate(parts):
        alone = run(attack, model, part, threat, 11)
        for f in fields(APGDState):
            one, other = getattr(alone, f.name), getattr(ended, f.name)[k * COUNT : (k + 1) * COUNT]
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9, msg=f.name)


def test_targets_are_the_likeliest_wrong_classes_each_with_its_restarts() -> None:
    logits = torch.tensor([[3.0, 9.0, 1.0, 5.0], [0.0, 1.0, 2.0, 3.0], [7.0, 0.0, 6.0, -1.0]])
    y = torch.tensor([1, 3, 2])  # the last one is not the model's answer
    attack = TargetedAPGD(restarts=2)
    assert attack.attempts(4) == 6
    x = torch.zeros(3, 1, 2, 2)
    rows = [
        attack.start(
            net(), NewAttempts(x, y, Rng.batch(3), torch.full_like(y, k), logits), Linf(0.1)
        ).target.tolist()
        for k in range(6)
    ]
    assert rows == [[3, 2, 0], [3, 2, 0], [0, 1, 1], [0, 1, 1], [2, 0, 3], [2, 0, 3]]


@pytest.mark.parametrize(("classes", "attempts"), [(2, 1), (3, 2), (9, 8), (10, 9), (100, 9)])
def test_no_more_targets_than_wrong_classes(classes: int, attempts: int) -> None:
    assert TargetedAPGD().attempts(classes) == attempts
    assert TargetedAPGD(restarts=3).attempts(classes) == 3 * attempts
    assert APGD(restarts=3).attempts(classes) == 3


@each_threat
@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("attack", [APGD("dlr", steps=20), TargetedAPGD(steps=20)], ids=str)
def test_few_classes(attack: AutoPGD, classes: int, threat: Threat) -> None:
    """DLR is not defined for fewer than 3 or 4 classes; the margin takes its place, and finds points."""
    model, big = net(classes), threat.at(threat.eps * 5)
    given = fresh(model)
    outcome = engine.run(attack, model, given.x, given.y, big, given.rng)
    assert (~outcome.robust).double().mean() > 0.5
    assert (model(outcome.x_adv).argmax(1) != given.y).equal(~outcome.robust)


@pytest.mark.parametrize("attack", [APGD(steps=9, restarts=2), TargetedAPGD(targets=2, steps=9)], ids=str)
def test_a_survivor_costs_n_plus_1_looks_an_attempt(attack: AutoPGD) -> None:
    model = net()
    given, looks = fresh(model), [0]

    def counting(x: Tensor) -> Tensor:
        looks[0] += len(x)
        return model(x)  # type: ignore[no-any-return]

    outcome = engine.run(attack, counting, given.x, given.y, Linf(1e-6), given.rng)
    assert outcome.robust.all()
    assert outcome.queries.tolist() == [20] * COUNT
    assert looks[0] == COUNT * (1 + 20)


def test_refused() -> None:
    for wrong in ({"steps": 0}, {"restarts": 0}, {"steps": 2.5}, {"loss": "kl"}):
        with pytest.raises(UsageError):
            APGD(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"targets must be .*, got 0"):
        TargetedAPGD(targets=0)
