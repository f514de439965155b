"""Un-T and Multi-T against a plain loop over examples, attempts and steps, with torch's own Adam."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import Model, MultiTargeted, NewAttempts, Untargeted, engine
from atlas.attacks.attack_log import CLEAN, SURVIVED
from atlas.attacks.margin import Margin
from atlas.errors import UsageError
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

COUNT, CLASSES = 30, 8
STREAMS = Rng.lanes(3, torch.arange(50, 50 + COUNT))


def net(scale: float = 1.0) -> nn.Sequential:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, CLASSES)).double()
    with torch.no_grad():  # steep and centred, so that every verdict occurs
        model[1].weight.mul_(6)
        model[1].bias.copy_(-model[1].weight.sum(1) / 2)
        model[3].weight.mul_(scale)
        model[3].bias.mul_(scale)
    return model


def images() -> tuple[Tensor, Tensor]:
    x = torch.rand(COUNT, 1, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = net()(x).argmax(1)
    y[::9] = (y[::9] + 1) % CLASSES
    return x, y


CASES: dict[str, tuple[Margin, Threat]] = {
    "un-t": (Untargeted(steps=6, restarts=3), Linf(0.05)),
    "un-t, constant": (Untargeted(steps=6, restarts=2, step_size=0.02, decay=False), Linf(0.05)),
    "un-t, L2": (Untargeted(steps=6, restarts=3), L2(0.12)),
    "un-t, Adam": (Untargeted(steps=6, restarts=3, optimizer="adam", decay=False), Linf(0.05)),
    "un-t, Adam, L2": (Untargeted(steps=6, restarts=2, optimizer="adam", step_size=0.03), L2(0.12)),
    "multi-t": (MultiTargeted(steps=4, restarts=2), Linf(0.05)),
    "multi-t, Adam": (MultiTargeted(steps=4, restarts=2, optimizer="adam", step_size=0.02), Linf(0.05)),
}
each_case = pytest.mark.parametrize(("attack", "threat"), CASES.values(), ids=CASES.keys())


def wrong_classes(logits: Tensor, y: int) -> list[int]:
    """All classes but y, the highest logit first."""
    return sorted((i for i in range(CLASSES) if i != y), key=lambda i: -logits[0, i].item())


def naive(
    attack: Margin, model: Model, x: Tensor, y: int, threat: Threat, rng: Rng
) -> tuple[int, int, Tensor, int]:
    """(attempt, step, x_adv) of one example, and how many classes its last attempt has climbed."""
    clean = model(x).detach()
    if int(clean.argmax()) != y:
        return CLEAN, -1, x, 0
    ranked = wrong_classes(clean, y)
    rounds = 1 if isinstance(attack, Untargeted) else CLASSES - 1
    for attempt in range(attack.restarts * rounds):
        point = nn.Parameter(threat.random_start(x, rng.fold("restart", attempt)))
        climbed = set[int]()
        adam = torch.optim.Adam([point], maximize=True, eps=1e-300)
        for step in range(attack.steps + 1):
            logits = model(point)
            if int(logits.argmax()) != y:
                return attempt, step, point.detach(), len(climbed)
            if step == attack.steps:
                break
            u = wrong_classes(logits, y)[0] if rounds == 1 else ranked[attempt % rounds]
            climbed.add(u)
            (point.grad,) = torch.autograd.grad(logits[0, u] - logits[0, y], point)
            size = attack.step_size or (0.1 if attack.optimizer == "adam" else threat.eps)
            size *= 1 - step / attack.steps if attack.decay else 1
            with torch.no_grad():
                if attack.optimizer == "adam":
                    adam.param_groups[0]["lr"] = size
                    adam.step()
                elif isinstance(threat, Linf):
                    point += size * point.grad.sign()
                else:
                    point += size * point.grad / point.grad.norm()
                point.copy_(threat.project(point, x))
    return SURVIVED, -1, point.detach(), len(climbed)


@each_case
@pytest.mark.parametrize("batch_size", [7, 64])
def test_agrees_with_a_plain_loop(attack: Margin, threat: Threat, batch_size: int) -> None:
    (x, y), model = images(), net()
    found = engine.run(attack, model, x, y, threat, STREAMS, batch_size=batch_size)
    rows = [naive(attack, model, x[i : i + 1], int(y[i]), threat, STREAMS[i : i + 1]) for i in range(COUNT)]
    assert list(zip(found.attempt.tolist(), found.step.tolist(), strict=True)) == [row[:2] for row in rows]
    torch.testing.assert_close(found.x_adv, torch.cat([row[2] for row in rows]), rtol=0, atol=1e-9)
    assert {CLEAN, SURVIVED, 0} <= set(found.attempt.tolist()), "the case is to show every verdict"
    if isinstance(threat, Linf):
        most = max(row[3] for row in rows)
        assert most > 1 if isinstance(attack, Untargeted) else most == 1, "u is to change on the way"


def test_multi_t_takes_every_wrong_class_once_a_round_the_best_first() -> None:
    (x, _), model = images(), net()
    logits = model(x).detach()
    y = logits.argmax(1)
    attack = MultiTargeted(steps=1, restarts=2)
    assert attack.attempts(CLASSES) == 2 * (CLASSES - 1)
    targets = []
    for attempt in range(attack.attempts(CLASSES)):
        fresh = NewAttempts(x, y, STREAMS, torch.full_like(y, attempt))
        target = attack.start(model, fresh, Linf(0.1)).target
        assert target is not None
        targets.append(target.tolist())
    for i, of_example in enumerate(zip(*targets, strict=True)):
        assert list(of_example) == 2 * wrong_classes(logits[i : i + 1], int(y[i]))


def test_with_two_classes_multi_t_is_un_t() -> None:
    (x, _), model = images(), net()

    def two(pixels: Tensor) -> Tensor:
        return model(pixels)[:, :2]  # type: ignore[no-any-return]

    y, rng = two(x).argmax(1), STREAMS
    one, other = (
        engine.run(kind(steps=4, restarts=2), two, x, y, Linf(0.05), rng)
        for kind in (Untargeted, MultiTargeted)
    )
    assert torch.equal(one.attempt, other.attempt)
    torch.testing.assert_close(one.x_adv, other.x_adv, rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["steepest", "adam"])
@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_the_scale_of_the_logits_changes_nothing(optimizer: Any, scale: float) -> None:
    (x, y), attack = images(), Untargeted(steps=4, restarts=2, optimizer=optimizer)
    one, other = (engine.run(attack, net(s), x, y, Linf(0.05), STREAMS) for s in (1.0, scale))
    assert torch.equal(one.attempt, other.attempt)
    torch.testing.assert_close(one.x_adv, other.x_adv, rtol=0, atol=1e-9)


@pytest.mark.parametrize("threat", [Linf(0.1), L2(0.4)], ids=str)
@pytest.mark.parametrize("kind", [Untargeted, MultiTargeted])
def test_a_linear_model_gives_way_exactly_at_its_distance(kind: type[Margin], threat: Threat) -> None:
    """The boundary to class i is (f_c - f_i) / ||w_i - w_c|| away, in the dual norm, inside the box."""
    torch.manual_seed(0)
    weights = torch.randn(3, 16, dtype=torch.float64)
    x = 0.5 + 0.02 * torch.randn(6, 1, 4, 4, dtype=torch.float64)

    def model(pixels: Tensor) -> Tensor:
        return pixels.flatten(1) @ weights.T

    logits = model(x)
    y = logits.argmax(1)
    slopes = weights - weights[y][:, None]
    dual = slopes.abs().sum(2) if isinstance(threat, Linf) else slopes.norm(dim=2)
    distance = ((logits.gather(1, y[:, None]) - logits) / dual).scatter(1, y[:, None], math.inf).amin(1)
    attack = kind(steps=40, restarts=1)
    for share, robust in ((0.999, True), (1.001, False)):
        for i in range(6):
            at = threat.at(share * float(distance[i]))
            one = slice(i, i + 1)
            found = engine.run(attack, model, x[one], y[one], at, Rng.batch(1))
            assert found.robust.item() is robust


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"steps": 0}, "steps must be .*, got 0"),
        ({"restarts": -1}, "restarts must be .*, got -1"),
        ({"step_size": 0.0}, "step_size must be .*, got 0.0"),
        ({"step_size": math.nan}, "step_size must be .*, got nan"),
        ({"optimizer": "adm"}, "did you mean 'adam'"),
    ],
    ids=str,
)
def test_refused(wrong: dict[str, Any], words: str) -> None:
    for kind in (Untargeted, MultiTargeted):
        with pytest.raises(UsageError, match=words):
            kind(**wrong)
