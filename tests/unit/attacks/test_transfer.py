"""Black box by transfer: crafted on the surrogates, tried once on the target."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import PGD, Transfer, engine
from atlas.attacks.attack_log import CLEAN, SURVIVED
from atlas.errors import NumericError, UsageError
from atlas.evaluation import evaluate
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

COUNT = 40
STREAMS = Rng.lanes(5, torch.arange(200, 200 + COUNT))


def net(seed: int) -> nn.Sequential:
    """Nets of different seeds are near each other, so that some adversaries transfer and some do not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 24), nn.Dropout(), nn.ReLU(), nn.Linear(24, 3)).double()
    torch.manual_seed(seed)
    with torch.no_grad():
        model[1].weight.mul_(6).add_(1.5 * torch.randn_like(model[1].weight))
        model[1].bias.copy_(-model[1].weight.sum(1) / 2)
    return model.eval()


TARGET, ONE, OTHER = net(1), net(2), net(3)


def images() -> tuple[Tensor, Tensor]:
    x = torch.rand(COUNT, 1, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = TARGET(x).argmax(1)
    y[::9] = (y[::9] + 1) % 3
    return x, y


def crafted(attack: PGD, surrogate: nn.Module, x: Tensor, y: Tensor, threat: Threat, rng: Rng) -> Tensor:
    """The end of PGD on the surrogate, written out."""
    point, clean = threat.random_start(x, rng), surrogate(x).log_softmax(1).detach()
    for _ in range(attack.steps):
        point.requires_grad_()
        answer = surrogate(point).log_softmax(1)
        loss = -answer.gather(1, y[:, None]) if attack.objective != "kl" else clean.exp() * (clean - answer)
        (gradient,) = torch.autograd.grad(loss.sum(), point)
        norm = 1 if isinstance(threat, Linf) else gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        step = gradient.sign() if isinstance(threat, Linf) else gradient / norm
        point = threat.project(point.detach() + 0.03 * step, x)
    return point


CASES: dict[str, tuple[Transfer, Threat]] = {
    "one surrogate": (Transfer((ONE,), PGD(steps=5, step_size=0.03)), Linf(0.08)),
    "two": (Transfer((ONE, OTHER), PGD(steps=5, step_size=0.03)), Linf(0.08)),
    "two, L2": (Transfer((ONE, OTHER), PGD(steps=5, step_size=0.03)), L2(0.15)),
    "two, restarts": (Transfer((OTHER, ONE), PGD(steps=3, step_size=0.03, restarts=2)), Linf(0.08)),
    "KL": (Transfer((ONE, OTHER), PGD(steps=5, step_size=0.03, objective="kl")), Linf(0.12)),
}


@pytest.mark.parametrize(("attack", "threat"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("batch_size", [6, 100])
def test_agrees_with_a_plain_loop(attack: Transfer, threat: Threat, batch_size: int) -> None:
    x, y = images()
    verdict, point = torch.full_like(y, SURVIVED), x.clone()
    verdict[TARGET(x).argmax(1) != y] = CLEAN
    attempts = len(attack.surrogates) * attack.attack.restarts
    for attempt in range(attempts):
        surrogate: Any = attack.surrogates[attempt % len(attack.surrogates)]
        end = crafted(attack.attack, surrogate, x, y, threat, STREAMS.fold("restart", attempt))
        standing = verdict == SURVIVED
        point[standing] = end[standing]
        verdict[standing & (TARGET(end).argmax(1) != y)] = attempt
    found = engine.run(attack, TARGET, x, y, threat, STREAMS, batch_size=batch_size)
    assert found.attempt.tolist() == verdict.tolist()
    torch.testing.assert_close(found.x_adv, point, rtol=0, atol=1e-9)
    spent = torch.where(verdict == SURVIVED, attempts, verdict + 1)
    assert found.queries.tolist() == spent.tolist(), "one query an attempt"
    fooling = set(verdict.tolist()) - {CLEAN, SURVIVED}
    assert len(fooling) >= min(attempts, 2), "the case is to show several attempts that fool"
    assert SURVIVED in verdict


def test_the_target_is_asked_about_the_images_and_the_ends_and_nothing_else() -> None:
    (x, y), asked = images(), list[Tensor]()

    def target(pixels: Tensor) -> Tensor:
        asked.append(pixels)
        return TARGET(pixels).detach()  # type: ignore[no-any-return]

    attack = Transfer((ONE, OTHER), PGD(steps=20, step_size=0.01))
    found = engine.run(attack, target, x, y, Linf(0.08), STREAMS)
    assert sum(map(len, asked)) == COUNT + 2 * int(found.clean.sum())


def test_what_fools_on_the_way_does_not_count() -> None:
    """The climb from 0.5 to 0.9 crosses a band where the target errs, and ends beyond it."""

    def target(pixels: Tensor) -> Tensor:
        flat = pixels.flatten(1)
        return torch.cat([0 * flat, ((flat > 0.55) & (flat < 0.65)).float() - 0.5], 1)

    def surrogate(pixels: Tensor) -> Tensor:
        flat = pixels.flatten(1)
        return torch.cat([-flat, flat], 1)

    x, y, threat = torch.full((1, 1, 1, 1), 0.5), torch.tensor([0]), Linf(0.4)
    attack = PGD(steps=4, step_size=0.1, start_at="clean")
    through = engine.run(Transfer((surrogate,), attack), target, x, y, threat, Rng.batch(1))
    assert through.robust.item()
    assert through.x_adv.item() == pytest.approx(0.9)
    into = Transfer((surrogate,), PGD(steps=1, step_size=0.1, start_at="clean"))
    assert engine.run(into, target, x, y, threat, Rng.batch(1)).attempt.item() == 0


def test_surrogates_are_frozen_while_it_runs_and_come_back_as_they_were() -> None:
    x, y = images()
    surrogate = net(2).train()
    surrogate[3].eval()
    surrogate[1].bias.requires_grad_(False)
    before = [m.training for m in surrogate.modules()], [p.requires_grad for p in surrogate.parameters()]
    seen = []

    def look(module: nn.Module, *_: object) -> None:
        seen.append(
            any(m.training for m in module.modules()) or any(p.requires_grad for p in module.parameters())
        )
        if len(seen) == 7:
            raise KeyboardInterrupt

    surrogate.register_forward_hook(look)
    with pytest.raises(KeyboardInterrupt):
        Transfer((surrogate,), PGD(steps=20))(TARGET, x, y, Linf(0.08))
    assert seen == [False] * 7
    after = [m.training for m in surrogate.modules()], [p.requires_grad for p in surrogate.parameters()]
    assert after == before
    assert all(p.grad is None for p in surrogate.parameters())


def test_a_broken_surrogate_is_named_and_no_verdict() -> None:
    x, y = images()
    attack = Transfer((ONE, lambda pixels: ONE(pixels) / 0), PGD(steps=3, step_size=0.03))
    with pytest.raises(NumericError, match=r"surrogates \[1\].*leave them out"):
        engine.run(attack, TARGET, x, y, Linf(0.01), STREAMS)


@pytest.mark.parametrize("wrong", [(), ONE, [ONE], (ONE, "runs/mine")], ids=lambda w: type(w).__name__)
def test_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="must be a tuple of models"):
        Transfer(wrong)


def test_a_surrogate_for_other_images_is_refused_before_any_attack() -> None:
    surrogate, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), images()
    with pytest.raises(UsageError, match=r"failed on images .*2x9 and 16x3"):
        evaluate(net(1).float(), (x.float(), y), Linf(0.1), "paper", surrogates=[surrogate], progress=False)
