"""`attack.perturb` for training, `attack(...)` for evaluation, and the random numbers of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import atlas
from atlas.attacks import APGD, FGSM, PGD, Attack, RayS, Square, TargetedFAB, Untargeted, engine
from atlas.errors import UsageError
from atlas.methods import Atlas, Method
from atlas.rng import Rng
from atlas.threat import Linf

EPS, STEPS, STEP = 0.1, 10, 0.025
COUNT = 500
Case = tuple[nn.Module, Tensor, Tensor]


@pytest.fixture(scope="module")
def trained() -> Case:
    """A small network that has learnt digits, and digits that it has not seen."""
    torch.manual_seed(0)
    digits = atlas.data.load("mnist-mini").subset(slice(2000 + COUNT))
    x, y = digits.pixels(), digits.y
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for part in range(60):
        batch = torch.arange(part * 100, part * 100 + 100) % 2000
        optimizer.zero_grad()
        cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    return model, x[2000:], y[2000:]


def small() -> Case:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), torch.rand(6, 1, 4, 4)
    return model, x, model(x).argmax(1)


def by_hand(model: nn.Module, x: Tensor, y: Tensor, start: Tensor) -> Tensor:
    """PGD as in every tutorial, all its steps."""
    x_adv = start
    for _ in range(STEPS):
        x_adv = x_adv.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(model(x_adv), y), x_adv)
        delta = (x_adv.detach() + STEP * gradient.sign() - x).clamp(-EPS, EPS)
        x_adv = (x + delta).clamp(0, 1)
    return x_adv


def test_perturb_is_the_whole_attack_and_a_call_stops_early(trained: Case) -> None:
    model, x, y = trained
    attack, threat, rng = PGD(steps=STEPS, step_size=STEP), Linf(EPS), Rng.batch(COUNT, seed=1)

    def loss(images: Tensor) -> float:
        with torch.no_grad():
            return cross_entropy(model(images), y).item()

    whole = attack.perturb(model, x, y, threat, rng)
    plain = by_hand(model, x, y, threat.random_start(x, rng.fold("restart", 0)))
    assert loss(whole) == pytest.approx(loss(plain), rel=1e-5)
    assert threat.contains(whole, x).all()
    stopped = attack(model, x, y, threat, rng)
    fooled, wrong = (model(images).argmax(1) != y for images in (stopped, x))
    assert torch.equal(fooled, fooled | (model(whole).argmax(1) != y)), "what one fools, both fool"
    assert torch.equal(stopped[wrong], x[wrong])
    assert not torch.equal(whole[wrong], x[wrong])
    assert loss(stopped) < 0.9 * loss(whole)


def test_perturb_is_as_strong_as_the_attack_of_another_library(trained: Case) -> None:
    library = pytest.importorskip("torchattacks", reason="the peer torchattacks is not installed")
    model, x, y = trained
    torch.manual_seed(0)
    theirs = library.PGD(model, eps=EPS, alpha=STEP, steps=STEPS, random_start=True)(x, y)
    ours = PGD(steps=STEPS, step_size=STEP).perturb(model, x, y, Linf(EPS))
    with torch.no_grad():
        wanted, found = (cross_entropy(model(images), y).item() for images in (theirs, ours))
    assert found == pytest.approx(wanted, rel=0.005)


# --- random numbers ---


def draws() -> dict[str, Callable[[Rng | None], Tensor]]:
    """Everything that takes `rng`, as a function of it."""
    model, x, y = small()
    attack, threat = PGD(steps=1, step_size=0.01), Linf(0.1)
    loss: Method = Atlas(alpha=0.1, beta=1.0)
    return {
        "call": lambda rng: attack(model, x, y, threat, rng),
        "perturb": lambda rng: attack.perturb(model, x, y, threat, rng),
        "run": lambda rng: engine.run(attack, model, x, y, threat, rng).x_adv,
        "loss": lambda rng: loss.loss(model, x, y, threat=threat, rng=rng).detach(),
    }


each_draw = pytest.mark.parametrize("draw", draws().values(), ids=draws().keys())


@each_draw
def test_without_rng_the_global_generator_decides(draw: Callable[[Rng | None], Tensor]) -> None:
    torch.manual_seed(7)
    first, second = draw(None), draw(None)
    torch.manual_seed(7)
    assert torch.equal(draw(None), first)
    assert not torch.equal(first, second)


@each_draw
def test_with_rng_the_global_generator_is_not_asked(draw: Callable[[Rng | None], Tensor]) -> None:
    before = torch.get_rng_state()
    assert torch.equal(draw(Rng.batch(6, seed=3)), draw(Rng.batch(6, seed=3)))
    assert torch.equal(torch.get_rng_state(), before)


@each_draw
@pytest.mark.parametrize(
    ("rng", "words"),
    [
        (Rng.batch(1), "rng must have one stream per image, got 1 for 6 images: use Rng.batch"),
        (Rng.batch(7), "got 7 for 6 images"),
        (0, "rng must be an atlas.Rng, such as .*got int"),
        (torch.Generator(), "rng must be an atlas.Rng, such as .*got Generator"),
    ],
    ids=["1", "7", "int", "generator"],
)
def test_a_wrong_rng_is_refused(draw: Callable[[Any], Tensor], rng: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        draw(rng)


# --- graphs and modes of autograd ---


@pytest.mark.parametrize(
    "attack",
    [
        *(FGSM(), PGD(steps=3), APGD(steps=3), Untargeted(steps=3, restarts=1)),
        *(Square(queries=5), TargetedFAB(steps=3), RayS(queries=9)),
    ],
    ids=lambda a: type(a).__name__,
)
def test_images_with_a_graph_are_attacked_like_any_others(attack: Attack) -> None:
    model, x, y = small()
    with_graph, rng = (2 * (x / 2).requires_grad_()), Rng.batch(6)
    assert torch.equal(attack(model, with_graph, y, Linf(0.1), rng), attack(model, x, y, Linf(0.1), rng))
    assert not attack(model, with_graph, y, Linf(0.1)).requires_grad


def test_perturbing_images_that_require_gradients_keeps_no_graph() -> None:
    """The graph would hold tensors of every step: `saved` counts what autograd keeps of the image itself."""
    model, x, y = small()
    leaf, attack, rng = x.clone().requires_grad_(), PGD(steps=5), Rng.batch(6)
    saved = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        wanted, plain = attack.perturb(model, x, y, Linf(0.1), rng), len(saved)
        found = attack.perturb(model, leaf, y, Linf(0.1), rng)
    assert torch.equal(found, wanted)
    assert not found.requires_grad
    assert len(saved) == 2 * plain
    assert not attack.perturb(model, leaf, y, Linf(0.0), rng).requires_grad


@pytest.mark.parametrize("draw", draws().values(), ids=draws().keys())
def test_inference_mode_is_refused_in_words(draw: Callable[[Rng | None], Tensor]) -> None:
    with torch.inference_mode(), pytest.raises(UsageError, match=r"which torch\.inference_mode"):
        draw(None)
    with torch.no_grad():
        inside = draw(Rng.batch(6))
    assert torch.equal(inside, draw(Rng.batch(6)))
