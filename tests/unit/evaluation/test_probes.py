"""Flags before an evaluation: each has a model that is built to raise it, and honest models raise none."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from atlas.attacks import FGSM
from atlas.data import Images, load
from atlas.evaluation.flags import MEANINGS, Flag
from atlas.evaluation.probes import probe
from atlas.models import build
from atlas.models.normalize import STANDARDS
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

WONG = Path(__file__).parents[4] / "shared" / "models" / "wong_mnist_fgsm.safetensors"
Model = Callable[[Tensor], Tensor]
each_threat = pytest.mark.parametrize("threat", [Linf(0.1), Linf(0.3), L2(1.5)], ids=str)


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    test = load("mnist-mini", train=False)
    return test.pixels(slice(0, 100)), test.y[:100]


def trained(data: Images, eps: float, epochs: int) -> nn.Module:
    """A few seconds of training on FGSM's points, or on the images themselves if eps is 0."""
    model, (x, y), threat = build("cnn-small"), (data.pixels(slice(0, 2000)), data.y[:2000]), Linf(eps)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for some in torch.split(order, 100):
            x_adv = FGSM().craft(model, x[some], y[some], threat, Rng.lanes(0, some).fold(epoch))
            optimizer.zero_grad()
            F.cross_entropy(model(x_adv), y[some]).backward()
            optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def natural() -> nn.Module:
    return trained(load("mnist-mini"), eps=0.0, epochs=2)


@pytest.fixture(scope="module")
def robust() -> nn.Module:
    return trained(load("mnist-mini"), eps=0.15, epochs=3)


def names(flags: list[Flag]) -> dict[str, bool]:
    """Each flag and whether it is fatal."""
    return {flag.name: flag.fatal for flag in flags}


@each_threat
@pytest.mark.parametrize("kind", ["natural", "robust"])
def test_honest_models_raise_no_flag(
    kind: str, threat: Threat, images: Any, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    assert probe(model, *images, threat) == []
    assert probe(lambda x: model(x).log_softmax(1), *images, threat) == [], (
        "log-probabilities are good logits"
    )


@each_threat
@pytest.mark.skipif(not WONG.exists(), reason=f"the published weights {WONG.name} are not here")
def test_published_robust_weights_raise_no_flag(threat: Threat, images: Any) -> None:
    model = build("cnn-small")
    model.load_state_dict(load_file(WONG))
    assert probe(model, *images, threat) == []


def test_double_precision_and_a_radius_of_0(natural: nn.Module, images: Any) -> None:
    x, y = images
    model = build("cnn-small").double()
    model.load_state_dict(natural.state_dict())
    assert probe(model, x.double(), y, Linf(0.1)) == []
    assert probe(natural, x, y, Linf(0.0)) == []


class WrongWay(torch.autograd.Function):
    """The identity, with a gradient that is turned round, or noise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, noise: bool) -> Tensor:
        ctx.noise = noise
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return torch.randn_like(gradients[0]) if ctx.noise else -gradients[0], None


def quantised(x: Tensor) -> Tensor:
    return (8 * x).round() / 8


BAD: dict[str, tuple[Callable[[Model, Tensor], Tensor], dict[str, bool]]] = {
    "a quantiser": (lambda f, x: f(quantised(x)), {"zero-gradients": True, "large-eps": True}),
    "a step function": (lambda f, x: f((x > 0.5) + 0 * x), {"zero-gradients": True, "large-eps": True}),
    "a stop-gradient": (
        lambda f, x: f(x.detach()) + 0 * x.flatten(1)[:, :1],
        {"zero-gradients": True, "large-eps": True},
    ),
    "a gradient turned round": (
        lambda f, x: f(WrongWay.apply(x, False)),  # type: ignore[no-untyped-call]
        {"not-uphill": True, "large-eps": True},
    ),
    "noise for a gradient": (
        lambda f, x: f(WrongWay.apply(x, True)),  # type: ignore[no-untyped-call]
        {"not-uphill": True, "large-eps": True, "one-step": False},
    ),
    "a shattered gradient": (
        lambda f, x: f(x + 0.05 * torch.sin(3000 * x)),
        {"large-eps": True, "one-step": False},
    ),
    "a shattered gradient of small amplitude": (
        lambda f, x: f(x + 0.005 * torch.sin(1000 * x)),
        {"misleading": False},
    ),
    "clipped logits": (lambda f, x: f(x).clamp(-2, 2), {"zero-gradients": True, "large-eps": True}),
    "noise on the images": (lambda f, x: f(x + 0.05 * torch.randn_like(x)), {"random": True}),
    "dropout": (lambda f, x: F.dropout(f(x), 0.1), {"random": True}),
    "a softmax": (lambda f, x: f(x).softmax(1), {"probabilities": False}),
    "sigmoids": (lambda f, x: f(x).sigmoid(), {"probabilities": False}),
    "saturation": (lambda f, x: 1000 * f(x), {"zero-gradients": False}),
    "NaN outputs": (lambda f, x: f(x).masked_fill(x[:, :, 14, 14] > 0.9, torch.nan), {"non-finite": True}),
    "logits that overflow": (lambda f, x: 1e38 * f(x), {"non-finite": True}),
    "NaN gradients": (lambda f, x: f(x) + 0 * x.flatten(1)[:, :1].sqrt(), {"non-finite": True}),
    "the batch's own mean": (lambda f, x: f((x - x.mean(0)).clamp(0, 1)), {"batch-dependent": True}),
    "BatchNorm over the batch": (
        lambda f, x: f(F.batch_norm(x, None, None, training=True)),
        {"batch-dependent": True},
    ),
    "another answer alone": (lambda f, x: f(x if len(x) > 1 else 1 - x), {"batch-dependent": True}),
    "one answer": (lambda f, x: f(x) + 1000 * F.one_hot(torch.tensor(3), 10), {"constant": False}),
}


@pytest.mark.parametrize(("bend", "wanted"), BAD.values(), ids=BAD.keys())
def test_a_model_that_is_built_to_raise_a_flag_does(
    bend: Callable[[Model, Tensor], Tensor], wanted: dict[str, bool], natural: nn.Module, images: Any
) -> None:
    torch.manual_seed(0)
    flags = probe(lambda x: bend(natural, x), *images, Linf(0.3))
    assert wanted.items() <= names(flags).items()
    fatal = {name for name, fatal in names(flags).items() if fatal}
    assert fatal == {name for name, fatal in wanted.items() if fatal}
    for flag in flags:
        evidence, _, meaning = flag.message.partition(": ")
        assert re.search(r"\d", evidence)
        assert meaning == MEANINGS[flag.name]


def test_one_answer_to_all_clean_images_is_no_way_around_the_probes() -> None:
    """Steps without a gradient: brighter by 0.1, every image is another class."""
    x, y = torch.full((100, 1, 8, 8), 0.15), (torch.arange(100) % 40 == 0).long()

    def steps(x: Tensor) -> Tensor:
        bright = (x.mean((1, 2, 3)) > 0.155).float() + 0 * x.mean((1, 2, 3))
        return torch.stack([2 - 4 * bright, 0 * bright], 1)

    assert names(probe(steps, x, y, Linf(0.1)))["zero-gradients"]


def test_every_flag_before_an_evaluation_has_such_a_model() -> None:
    of_attacks = {"short-reach", "black-box-stronger", "still-gaining", "class-at-zero", "changing"}
    of_attacks |= {"far-ahead", "queries-only"}
    tested_below = {"unnormalized"}
    assert {name for _, wanted in BAD.values() for name in wanted} == set(
        MEANINGS
    ) - of_attacks - tested_below


def test_a_quantiser_with_a_gradient_that_sees_through_it_is_honest(natural: nn.Module, images: Any) -> None:
    assert probe(lambda x: natural(x + (quantised(x) - x).detach()), *images, Linf(0.3)) == []


def test_randomness_is_not_fatal_if_it_is_averaged_over(natural: nn.Module, images: Any) -> None:
    torch.manual_seed(0)
    flags = probe(lambda x: natural(x + 0.02 * torch.randn_like(x)), *images, Linf(0.3), eot=True)
    assert names(flags) == {"random": False}


def test_the_evidence_counts_the_images(natural: nn.Module, images: Any) -> None:
    def some_nan(x: Tensor) -> Tensor:
        return natural(x).masked_fill(x[:, :, 14, 14] > 0.9, torch.nan)

    x, y = images
    (flag,) = probe(some_nan, x, y, Linf(0.1))
    assert f"at {int((x[:, 0, 14, 14] > 0.9).sum())} of 100 clean images" in flag.message


def test_without_gradients_only_the_outputs_are_probed(natural: nn.Module, images: Any) -> None:
    def asked(x: Tensor) -> Tensor:
        with torch.no_grad():
            return natural(x)

    assert probe(asked, *images, Linf(0.3)) == []
    assert names(probe(lambda x: asked(x).softmax(1), *images, Linf(0.3))) == {"probabilities": False}


def test_a_model_that_is_always_wrong_has_nothing_to_probe(natural: nn.Module, images: Any) -> None:
    x, _ = images
    with torch.no_grad():
        assert probe(natural, x, (natural(x).argmax(1) + 1) % 10, Linf(0.3)) == []


def test_the_model_and_the_global_random_state_are_as_before(images: Any) -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Dropout(0.5), nn.Linear(784, 10))
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    assert "random" not in names(probe(model, *images, Linf(0.3))), "probed in eval mode"
    assert all(m.training for m in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


@each_threat
def test_no_batch_is_larger_than_asked_for(
    threat: Threat, images: tuple[Tensor, Tensor], natural: nn.Module
) -> None:
    """Whoever evaluates large images in small batches has memory for no more."""
    sizes = list[int]()

    def model(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return natural(x)  # type: ignore[no-any-return]

    whole = probe(model, *images, threat)
    assert max(sizes) == 100
    sizes.clear()
    assert names(probe(model, *images, threat, batch_size=16)) == names(whole)
    assert max(sizes) == 16


@pytest.mark.parametrize("name", ["the batch's own mean", "another answer alone", "NaN gradients"])
def test_flags_in_small_batches(name: str, natural: nn.Module, images: Any) -> None:
    bend, wanted = BAD[name]
    whole = probe(lambda x: bend(natural, x), *images, Linf(0.3))
    small = probe(lambda x: bend(natural, x), *images, Linf(0.3), batch_size=7)
    assert names(small) == names(whole) == wanted
    if name == "NaN gradients":
        assert [flag.message for flag in small] == [flag.message for flag in whole]


@pytest.mark.parametrize("name", ["0..255", "-1..1"])
def test_a_forgotten_normalisation_is_named(
    name: str, natural: nn.Module, images: tuple[Tensor, Tensor]
) -> None:
    (mean,), (std,) = STANDARDS[name]

    def normalised(x: Tensor) -> Tensor:
        return natural(x * std + mean)  # type: ignore[no-any-return]

    (flag,) = (flag for flag in probe(normalised, *images, Linf(0.1)) if flag.name == "unnormalized")
    assert flag.grave
    right = int((natural(images[0]).argmax(1) == images[1]).sum())
    assert f'and {right} of 100 with --normalize {name} (in Python normalize="{name}")' in flag.message


def test_a_normalisation_of_the_images_themselves_is_named_by_its_numbers(
    natural: nn.Module, images: tuple[Tensor, Tensor]
) -> None:
    x = images[0] / 4 + 0.7
    std, mean = (round(float(value), 4) for value in torch.std_mean(x, correction=0))

    def normalised(z: Tensor) -> Tensor:
        return natural((z * std + mean - 0.7) * 4)  # type: ignore[no-any-return]

    (flag,) = (flag for flag in probe(normalised, x, images[1], Linf(0.1)) if flag.name == "unnormalized")
    assert f"--mean {mean} --std {std} (in Python normalize=([{mean}], [{std}]))" in flag.message


def test_a_poor_model_and_one_that_refuses_other_pixels_are_not_said_to_miss_a_normalisation(
    natural: nn.Module, images: tuple[Tensor, Tensor]
) -> None:
    x, y = images

    def strict(x: Tensor) -> Tensor:
        if x.amin() < 0 or x.amax() > 1:
            raise ValueError("pixels outside [0, 1]")
        return natural(x).roll(1, 1)  # type: ignore[no-any-return]  # wrong at nearly every image

    assert "unnormalized" not in names(probe(strict, x, y, Linf(0.1)))
    assert "unnormalized" not in names(probe(build("cnn-small", seed=1), x, y, Linf(0.1)))
