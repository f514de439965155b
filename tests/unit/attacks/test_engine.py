"""The lanes engine: the same verdicts as a plain loop over examples, whatever the batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import FGSM, PGD, Model, NewAttempts, Outcome, Step, engine
from atlas.attacks.attack_log import BROKEN, CLEAN, SURVIVED
from atlas.attacks.engine import run
from atlas.attacks.pgd import ClimbState
from atlas.errors import DataError, NumericError
from atlas.objectives import ATTACK_OBJECTIVES
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

COUNT = 61
ids = torch.arange(100, 100 + COUNT)


def net() -> nn.Sequential:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 3)).double()
    with torch.no_grad():  # steep enough, and centred, for every verdict to occur
        model[1].weight.mul_(6)
        model[1].bias.copy_(-model[1].weight.sum(1) / 2)
    return model


def images() -> tuple[Tensor, Tensor]:
    """Examples of which some are wrong before any attack."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(COUNT, 1, 3, 3, dtype=torch.float64, generator=generator)
    y = net()(x).argmax(1)
    y[::9] = (y[::9] + 1) % 3
    return x, y


CASES: dict[str, tuple[PGD, Threat]] = {
    "pgd": (PGD(steps=4, step_size=0.02), Linf(0.06)),
    "restarts": (PGD(steps=3, step_size=0.02, restarts=4, clip_start=False), Linf(0.06)),
    "l2, decay": (PGD(steps=5, relative_step=0.5, decay=True, restarts=3), L2(0.12)),
    "kl": (PGD(steps=4, objective="kl", start_at="gaussian", restarts=2), Linf(0.06)),
    "margin": (PGD(steps=4, objective="margin"), L2(0.12)),
    "fgsm": (FGSM(relative_step=1.25, restarts=3), Linf(0.06)),
}
each_case = pytest.mark.parametrize(("attack", "threat"), CASES.values(), ids=CASES.keys())


def naive(attack: PGD, model: Model, x: Tensor, y: Tensor, threat: Threat, rng: Rng) -> Outcome:
    """One example after another, one restart after another, a look at every iterate, the last one too."""
    rows = [
        naive_example(attack, model, x[i : i + 1], y[i : i + 1], threat, rng[i : i + 1])
        for i in range(len(y))
    ]
    attempts, steps, margins, queries, points = zip(*rows, strict=True)
    attempt, step, spent = (torch.tensor(column) for column in (attempts, steps, queries))
    return Outcome(attempt, step, torch.tensor(margins, dtype=x.dtype), spent, torch.cat(points))


def margin_of(logits: Tensor, y: Tensor) -> float:
    values = logits[0].tolist()
    return max(value for label, value in enumerate(values) if label != int(y)) - values[int(y)]


def naive_example(
    attack: PGD, model: Model, x: Tensor, y: Tensor, threat: Threat, rng: Rng
) -> tuple[int, int, float, int, Tensor]:
    """(attempt, step, margin, queries, x_adv)."""
    clean = model(x).detach()
    if clean.argmax() != y:
        return CLEAN, -1, margin_of(clean, y), 0, x
    queries, ends = 0, []
    for restart in range(attack.restarts):
        stream = rng.fold("restart", restart)
        if attack.start_at == "gaussian":
            point = threat.project(x + 0.001 * stream.normal(x.shape[1:], x.dtype), x)
        else:
            point = threat.random_start(x, stream, clip=attack.clip_start)
        for step in range(attack.steps + 1):
            point = point.detach().requires_grad_()
            logits = model(point)
            queries += 1
            if logits.argmax() != y and threat.contains(point.detach(), x):
                return restart, step, margin_of(logits, y), queries, point.detach()
            if step == attack.steps:
                ends.append(margin_of(logits, y))
                break
            loss = ATTACK_OBJECTIVES[attack.climbs](logits, y, clean)
            (gradient,) = torch.autograd.grad(loss.sum(), point)
            size = attack.step_size or (attack.relative_step or 2.5 / attack.steps) * threat.eps
            size *= 1 - step / attack.steps if attack.decay else 1
            point = threat.project(threat.ascend(point.detach(), gradient, size), x)
    return SURVIVED, -1, max(ends), queries, point.detach()


def search(
    attack: PGD, threat: Threat, batch_size: int, order: Tensor | None = None, model: Model | None = None
) -> Outcome:
    x, y = images()
    order = torch.arange(COUNT) if order is None else order
    rng = Rng.lanes(7, ids[order])
    model = model or net()
    return engine.run(attack, model, x[order], y[order], threat, rng, batch_size=batch_size)


@each_case
@pytest.mark.parametrize("batch_size", [1, 7, 64, COUNT])
def test_agrees_with_a_plain_loop(attack: PGD, threat: Threat, batch_size: int) -> None:
    wanted = naive(attack, net(), *images(), threat, Rng.lanes(7, ids))
    found = search(attack, threat, batch_size)
    assert found.attempt.tolist() == wanted.attempt.tolist()
    assert found.step.tolist() == wanted.step.tolist()
    assert found.queries.tolist() == wanted.queries.tolist()
    torch.testing.assert_close(found.margin, wanted.margin, rtol=0, atol=1e-7)
    torch.testing.assert_close(found.x_adv, wanted.x_adv, rtol=0, atol=1e-9)
    verdicts = set(wanted.attempt.tolist())
    assert {CLEAN, SURVIVED, 0} <= verdicts, "the case is to show every verdict"


def test_later_restarts_fool_too() -> None:
    attack, threat = CASES["restarts"]
    assert search(attack, threat, 64).attempt.max() >= 1


@each_case
@pytest.mark.parametrize("seed", [0, 1])
def test_order_does_not_matter(attack: PGD, threat: Threat, seed: int) -> None:
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(seed))
    straight, mixed = search(attack, threat, 16), search(attack, threat, 10, order)
    assert torch.equal(straight.attempt[order], mixed.attempt)
    torch.testing.assert_close(straight.x_adv[order], mixed.x_adv, rtol=0, atol=1e-9)


# --- the corners ---


def one_pixel(model: Model, x: float, attack: PGD, threat: Threat) -> Outcome:
    """One image of one pixel and class 0."""
    pixel = torch.full((1, 1, 1, 1), x, dtype=torch.float64)
    return engine.run(attack, model, pixel, torch.tensor([0]), threat, Rng.batch(1))


def two_logits(other: Tensor) -> Tensor:
    """Logits (0, other)."""
    return torch.cat([torch.zeros_like(other), other], 1)


def test_the_last_iterate_is_tested() -> None:
    """FGSM from the clean image: only the point after its one step is wrong."""
    found = one_pixel(
        lambda x: two_logits(x.flatten(1) - 0.6), 0.5, FGSM(start_at="clean", relative_step=1.0), Linf(0.2)
    )
    assert found.attempt.item() == 0
    assert found.x_adv.item() == pytest.approx(0.7)


def test_an_iterate_on_the_way_counts() -> None:
    """Wrong only between 0.55 and 0.65: PGD from 0.5 steps through 0.6 and ends at 0.9, right again."""

    def band(x: Tensor) -> Tensor:
        flat = x.flatten(1)
        inside = ((flat > 0.55) & (flat < 0.65)).to(x.dtype)
        return two_logits(1e-3 * flat - 1 + 2 * inside)

    attack = PGD(steps=4, step_size=0.1, start_at="clean")
    found = one_pixel(band, 0.5, attack, Linf(0.4))
    assert found.attempt.item() == 0
    assert found.x_adv.item() == pytest.approx(0.6)
    end = attack.craft(band, *one(0.5), Linf(0.4), Rng.batch(1))
    assert end.item() == pytest.approx(0.9)


@dataclass(frozen=True)
class FarOff(PGD):
    """An attack that only ever asks at white pixels, however far they are."""

    looks_at_last: ClassVar[bool] = False

    def advance(self, model: Model, state: ClimbState, threat: Threat) -> Step[ClimbState]:
        white = torch.ones_like(state.x)
        return Step(super().advance(model, state, threat).state, white, model(white))


@pytest.mark.parametrize(("boundary", "verdict"), [(0.8, SURVIVED), (0.65, 0)])
def test_what_was_tried_outside_the_ball_is_judged_inside(boundary: float, verdict: int) -> None:
    found = one_pixel(lambda x: two_logits(x.flatten(1) - boundary), 0.5, FarOff(steps=3), Linf(0.2))
    assert found.attempt.item() == verdict
    assert found.x_adv.item() == pytest.approx(0.7)
    assert found.margin.item() == pytest.approx(0.7 - boundary)
    assert found.queries.item() == 3


def fresh(x: Tensor, y: Tensor, rng: Rng) -> NewAttempts:
    return NewAttempts(x, y, rng, torch.zeros_like(y))


def one(x: float) -> tuple[Tensor, Tensor]:
    return torch.full((1, 1, 1, 1), x, dtype=torch.float64), torch.tensor([0])


def test_a_start_outside_the_box_is_no_success() -> None:
    """The model errs for negative pixels only, where an unclipped start may lie but no image does."""

    def errs_below_zero(x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return two_logits(-1 + 1e-3 * flat + 2 * (flat < 0).to(x.dtype))

    attack = PGD(steps=1, step_size=0.01, clip_start=False, restarts=8)
    starts = [
        attack.start(
            errs_below_zero, fresh(*one(0.0), Rng.batch(1).fold("restart", k)), Linf(0.3)
        ).x_adv.item()
        for k in range(8)
    ]
    assert min(starts) < 0
    assert one_pixel(errs_below_zero, 0.0, attack, Linf(0.3)).attempt.item() == SURVIVED


def test_radius_0_is_clean_accuracy() -> None:
    (x, y), calls = images(), []
    model = net()
    model.register_forward_hook(lambda *_: calls.append(1))
    found = engine.run(PGD(), model, x, y, Linf(0.0), Rng.lanes(7, ids), batch_size=COUNT)
    assert len(calls) == 1
    assert torch.equal(found.robust, model(x).argmax(1) == y)
    assert torch.equal(found.clean, found.robust)
    assert torch.equal(found.x_adv, x)


def test_no_examples() -> None:
    x, y = images()
    found = engine.run(PGD(), net(), x[:0], y[:0], Linf(0.1), Rng.lanes(7, ids[:0]))
    assert (len(found.attempt), len(found.x_adv)) == (0, 0)


# --- progress, interruption, economy ---


@each_case
def test_progress_counts_settled_examples(attack: PGD, threat: Threat) -> None:
    (x, y), seen = images(), list[int]()
    engine.run(attack, net(), x, y, threat, Rng.lanes(7, ids), batch_size=8, each_step=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == COUNT
    assert seen[0] >= 7, "clean mistakes are settled at once"


class Stop(Exception):
    pass


@pytest.mark.parametrize("after", [1, 3])
def test_what_each_step_raises_ends_the_run_and_leaves_the_model_alone(after: int) -> None:
    model, steps = net(), 0

    def stop(settled: int) -> None:
        nonlocal steps
        steps += 1
        assert not any(m.training for m in model.modules())
        if steps == after:
            raise Stop

    with pytest.raises(Stop):
        engine.run(
            PGD(steps=20), model, *images(), Linf(0.01), Rng.lanes(7, ids), batch_size=8, each_step=stop
        )
    assert steps == after
    assert all(m.training for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())


@dataclass(frozen=True)
class Recorded(PGD):
    """PGD that writes down how many lanes it starts and advances."""

    started: ClassVar[list[int]] = []
    advanced: ClassVar[list[int]] = []

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> ClimbState:
        self.started.append(len(fresh.x))
        return super().start(model, fresh, threat)

    def advance(self, model: Model, state: ClimbState, threat: Threat) -> Step[ClimbState]:
        self.advanced.append(len(state))
        return super().advance(model, state, threat)


@pytest.fixture
def recorded() -> tuple[list[int], list[int]]:
    Recorded.started.clear()
    Recorded.advanced.clear()
    return Recorded.started, Recorded.advanced


def test_batches_stay_full_until_nothing_waits(recorded: tuple[list[int], list[int]]) -> None:
    started, advanced = recorded
    search(Recorded(steps=4, step_size=0.02), Linf(0.06), 8)
    assert max(advanced) == 8
    waiting = COUNT - int((net()(images()[0]).argmax(1) != images()[1]).sum())
    assert sum(started) == waiting
    drained = next(i for i, size in enumerate(advanced) if size < 8)
    assert sum(advanced) - sum(advanced[:drained]) < 8 * 4, "only the last lanes run in part-filled batches"
    assert advanced[drained:] == sorted(advanced[drained:], reverse=True)


def test_a_fooled_example_leaves_with_its_restarts(recorded: tuple[list[int], list[int]]) -> None:
    """A model that errs everywhere but at the clean images: one look at each start, no restart begun."""
    started, advanced = recorded
    x, y = images()

    def errs_off_the_images(pixels: Tensor) -> Tensor:
        off = (pixels[:, None] - x[None]).abs().flatten(2).amax(2).amin(1, keepdim=True)
        return torch.cat([torch.full_like(off, 1e-6), off], 1)

    attack = Recorded(steps=50, restarts=10)
    found = engine.run(attack, errs_off_the_images, x, y * 0, Linf(0.1), Rng.lanes(7, ids), batch_size=16)
    assert found.attempt.tolist() == [0] * COUNT
    # The last batch is filled up with first restarts of examples that are not settled yet.
    assert sum(started) == 64
    assert sum(advanced) == 64


# --- what must not pass for robust ---


def test_logits_that_are_not_numbers_are_no_answer() -> None:
    x, y = torch.rand(6, 1, 4, 4), torch.zeros(6, dtype=torch.int64)

    def model(pixels: Tensor) -> Tensor:
        return pixels.flatten(1)[:, :3] * torch.nan

    outcome = run(PGD(steps=2), model, x, y, Linf(0.1), Rng.batch(6))
    assert outcome.broken.all()
    assert not outcome.robust.any()
    with pytest.raises(NumericError, match="6 of 6 images"):
        outcome.checked()


def test_a_gradient_that_is_not_a_number_is_no_defence() -> None:
    x, y = torch.rand(6, 1, 4, 4), torch.zeros(6, dtype=torch.int64)
    weight = torch.zeros(16, 3)
    weight[:, 0] = 1.0

    def model(pixels: Tensor) -> Tensor:
        logits = pixels.flatten(1) @ weight
        return logits + 0 * (logits - logits).square().sqrt()

    outcome = run(PGD(steps=2), model, x, y, Linf(0.1), Rng.batch(6))
    assert outcome.broken.all()
    assert not outcome.robust.any()
    with pytest.raises(NumericError, match="6 of 6 images"):
        outcome.checked()


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_one_bad_example_leaves_the_others_alone(batch_size: int) -> None:
    """NaN beyond a threshold that one image reaches on the way, after it has started well."""
    x, y = torch.full((8, 1, 1, 1), 0.2), torch.zeros(8, dtype=torch.int64)
    x[3] = 0.5

    def model(pixels: Tensor) -> Tensor:
        flat = pixels.flatten(1)
        return two_logits(flat - 0.9) / (flat < 0.6).to(flat.dtype).sqrt().where(flat > 0.6, torch.ones(()))

    attack = PGD(steps=4, step_size=0.05, start_at="clean", restarts=2, objective="margin")
    outcome = run(attack, model, x, y, Linf(0.3), Rng.batch(8), batch_size=batch_size)
    assert outcome.attempt.tolist() == [SURVIVED] * 3 + [BROKEN] + [SURVIVED] * 4
    assert not outcome.margin[3].isfinite()


@each_case
@pytest.mark.parametrize("after", [0, 2, 5, 11])
def test_a_restored_engine_ends_the_same(attack: PGD, threat: Threat, after: int) -> None:
    def new() -> engine.Engine:
        return engine.Engine(attack, net(), *images(), threat, Rng.lanes(7, ids), batch_size=8)

    first, second = new(), new()
    for _ in range(after):
        first.step()
    second.restore({name: tensor.clone() for name, tensor in first.snapshot().items()})
    for one in (first, second):
        while not one.finished:
            one.step()
        assert one.settled == COUNT
        assert one.share_done == 1.0
    for one, other in zip(vars(first.outcome()).values(), vars(second.outcome()).values(), strict=True):
        assert torch.equal(one, other)
    assert first.robust == int(first.outcome().robust.sum())


def test_a_claim_that_is_not_borne_out_does_not_end_the_attempt() -> None:
    """A model that answers wrongly every third time it is asked, and rightly at the second look."""
    x, y = torch.full((4, 1, 2, 2), 0.5), torch.zeros(4, dtype=torch.int64)
    asked = 0

    def model(pixels: Tensor) -> Tensor:
        nonlocal asked
        asked += 1
        lie = 10.0 if asked == 2 else 0.0
        first = pixels.flatten(1).sum(1)
        return torch.stack([first, torch.full_like(first, 1.9) + lie], 1)

    outcome = run(PGD(steps=5, step_size=0.05, start_at="clean"), model, x, y, Linf(0.2), Rng.batch(4))
    assert not outcome.robust.any(), "the attempt went on to where the model is really wrong"


@pytest.mark.parametrize("bad", [lambda x: x * 255, lambda x: x * 4 - 2, lambda x: x * torch.nan])
def test_images_that_are_not_pixels_are_refused(bad: Callable[[Tensor], Tensor]) -> None:
    x, y = torch.rand(6, 1, 4, 4), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(DataError, match=r"must be finite and in \[0, 1\], got"):
        run(PGD(steps=2), lambda pixels: pixels.flatten(1), bad(x), y, Linf(0.1), Rng.batch(6))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_images_in_half_precision_are_refused(dtype: torch.dtype) -> None:
    """Their points at the edge of the ball are rounded out of it: no claim would count."""
    x, y = images()
    with pytest.raises(DataError, match="must be float32, got"):
        run(PGD(steps=2), net().to(dtype), x.to(dtype), y, Linf(0.06), Rng.lanes(0, ids))
