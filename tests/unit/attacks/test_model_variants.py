"""Forms of a model to search with: the same answers and gradients, up to their precision."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import PGD, Attack, Square, TargetedFAB, model_variants
from atlas.attacks.engine import predict
from atlas.attacks.model_variants import FastGradConv2d, averaged, frozen, searched
from atlas.errors import UsageError
from atlas.models import build
from atlas.models.source import fingerprint
from atlas.threat import Linf


def logits_and_gradient(model: object, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    logits = model(x)  # type: ignore[operator]
    (gradient,) = torch.autograd.grad(logits.square().sum(), x)
    return logits.detach(), gradient


def test_the_layers_of_a_model_keep_their_class_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    monkeypatch.setattr(model_variants, "FAST_CONV_GRAD", False)
    with frozen(model):
        assert type(model[0]) is nn.Conv2d


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(4, 2, 1), (5, 1, 2), (3, 2, 0), (3, (1, 2), (2, 0))]
)
@pytest.mark.parametrize("bias", [True, False])
def test_the_folded_gradient_is_the_gradient(
    kernel: int, stride: int | tuple[int, int], padding: int | tuple[int, int], bias: bool
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, kernel, stride, padding, bias=bias), nn.ReLU(), nn.Conv2d(6, 2, 3), nn.Flatten()
    ).double()
    x = torch.rand(5, 1, 9, 11, dtype=torch.float64)
    expected = logits_and_gradient(model, x)
    known = fingerprint(model)
    with frozen(model):
        assert isinstance(model[0], FastGradConv2d)
        assert fingerprint(model) == known
        with frozen(model):
            got = logits_and_gradient(model, x)
        assert isinstance(model[0], FastGradConv2d)
    assert type(model[0]) is nn.Conv2d, "the model is as it was"
    for wanted, found in zip(expected, got, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def by_weight(model: nn.Module, x: Tensor) -> Tensor:
    """As somebody would who puts weights of their own into a model that stands still."""
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    loss = torch.func.functional_call(model, weights, x).square().sum()
    return torch.autograd.grad(loss, weights["0.weight"])[0]


def in_batches(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    logits = model(x)
    return torch.autograd.grad(logits, x, torch.stack([logits, 2 * logits]), is_grads_batched=True)[0]


@pytest.mark.parametrize(
    "derivative",
    [
        by_weight,
        in_batches,
        lambda model, x: torch.func.vmap(torch.func.grad(lambda z: model(z[None]).square().sum()))(x),
        lambda model, x: torch.func.jvp(model, (x,), (x.cos(),))[1],
        lambda model, x: torch.autograd.functional.jacobian(
            model, x, vectorize=True, strategy="forward-mode"
        ),
        lambda model, x: torch.autograd.functional.jacobian(lambda z: model[0](z), x[0]),
    ],
    ids=["weights", "batched gradients", "vmap", "jvp", "forward mode", "no batch"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, within its forward mode
def test_every_other_derivative_is_what_it_would_be(derivative: Callable[..., Tensor]) -> None:
    """A model may take them within itself, and a custom attack in any way."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(75, 2)).double()
    x = torch.rand(2, 1, 5, 5, dtype=torch.float64)
    expected = derivative(model, x)
    with frozen(model):
        got = derivative(model, x)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(3, 4, 3), nn.Conv2d(1, 4, 3, padding="same"), nn.Conv2d(1, 4, 3, padding_mode="circular")],
    ids=str,
)
def test_other_layers_are_left_as_they_are(layer: nn.Conv2d) -> None:
    model = nn.Sequential(layer, nn.Flatten())
    with frozen(model):
        assert type(model[0]) is nn.Conv2d


class Locked(nn.Module):
    """A model that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.lock = nn.Conv2d(1, 2, 3), threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            return self.layer(x).flatten(1)  # type: ignore[no-any-return]


def test_a_model_that_cannot_be_copied_is_searched_in_float32_only() -> None:
    model = Locked()
    assert searched(model, "float32") is model
    with pytest.raises(UsageError, match="cannot be copied"):
        searched(model, "bfloat16")


def test_a_model_that_lowers_its_own_precision() -> None:
    class Lowered(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x).float()

    torch.manual_seed(0)
    model = Lowered(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 3))
    x = torch.rand(4, 1, 8, 8)
    wanted = logits_and_gradient(model, x)[1]
    with frozen(model):
        found = logits_and_gradient(model, x)[1]
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max()))


def test_bfloat16_is_near_and_leaves_the_model_in_float32() -> None:
    model = build("cnn-small", seed=3).eval()
    x = torch.rand(8, 1, 28, 28)
    with frozen(model):
        fast = searched(model, "bfloat16")
        wanted, found = logits_and_gradient(model, x), logits_and_gradient(fast, x)
    assert all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())
    for one, other in zip(wanted, found, strict=True):
        assert other.dtype == torch.float32
        cosine = torch.nn.functional.cosine_similarity(one.flatten(1), other.flatten(1))
        assert (cosine > 0.97).all()
        assert not torch.equal(one, other)


def test_the_mean_of_many_looks() -> None:
    numbers = iter([1.0, 2.0, 6.0, 7.0])
    model = averaged(lambda x: x * next(numbers), 3)
    assert model(torch.ones(2, 2)).tolist() == [[3.0, 3.0], [3.0, 3.0]]


def precisions() -> list[str]:
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    return [torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, mkldnn.conv.fp32_precision]


class Precisions(nn.Module):
    """A linear model that notes which precision its products are allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.searched, self.verified = nn.Linear(4, 2), set[str](), set[str]()

    def forward(self, x: Tensor) -> Tensor:
        (self.searched if torch.is_grad_enabled() else self.verified).update(precisions())
        return self.linear(x.flatten(1))


@pytest.mark.parametrize("attack", [PGD(steps=3), Square(queries=5), TargetedFAB(steps=3, targets=1)])
def test_verdicts_and_attacks_that_need_it_have_full_float32(
    attack: Attack,
) -> None:
    before = precisions()
    assert "tf32" in before  # what torch starts with, for convolutions by cuDNN
    model, x = Precisions(), torch.full((6, 1, 2, 2), 0.5)
    y = model.linear(x.flatten(1)).argmax(1)
    attack(model, x, y, Linf(0.4))
    assert model.verified == {"ieee"}
    if not isinstance(attack, Square):
        assert model.searched == ({"ieee"} if attack.needs_precision else {*before})
    assert precisions() == before

    def fail(x: Tensor) -> Tensor:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        predict(fail, x, 2)
    assert precisions() == before
