"""Channels last while an attack runs: the same answers, and the model as it was afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import atlas
from atlas.attacks import PGD, frozen
from atlas.attacks.model_variants import channels_last
from atlas.models import build


def order(model: nn.Module) -> list[bool]:
    """Whether each convolution is channels last; of one channel or one pixel it is in any order."""
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
    told = [w for w in weights if w.shape[1] > 1 and w[0, 0].numel() > 1]
    return [w.is_contiguous(memory_format=torch.channels_last) for w in told]


def stays(layer: nn.Module, images: tuple[Tensor, ...], features: Tensor) -> None:
    """What a layer gives is in that order too: or the next one would have to put it so."""
    assert features.is_contiguous(memory_format=torch.channels_last)


class Viewed(nn.Module):
    """Takes its features apart by `view`, which knows one order of memory only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(32, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layer(x.expand(-1, 32, -1, -1))
        return features.view(len(x), -1)[:, ::4]


@pytest.mark.parametrize("name", ["cnn", "wrn-10-1", "preact-resnet18"])
def test_answers_and_gradients_are_the_same(name: str) -> None:
    shape = (1, 28, 28) if name == "cnn" else (3, 32, 32)
    model = build(name, shape=shape, seed=1).double().eval()
    x = torch.rand(3, *shape, dtype=torch.float64)

    def found() -> tuple[Tensor, Tensor]:
        z = x.clone().requires_grad_()
        logits = model(z)
        return logits.detach(), torch.autograd.grad(logits.square().sum(), z)[0]

    with frozen(model):
        wanted = found()
        with channels_last(model, x):
            assert all(order(model))
            for layer in model.modules():
                if isinstance(layer, nn.Conv2d):
                    layer.register_forward_hook(stays)
            got = found()
    for one, other in zip(wanted, got, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-10, atol=1e-12)


def test_the_model_comes_back_with_the_tensors_that_it_had() -> None:
    model = build("cnn")
    tensors = [(p.data_ptr(), p.stride(), p._version) for p in model.parameters()]

    def attacked() -> None:
        with channels_last(model, torch.rand(1, 1, 28, 28)):
            raise KeyError

    with pytest.raises(KeyError):
        attacked()
    assert [(p.data_ptr(), p.stride(), p._version) for p in model.parameters()] == tensors


@pytest.mark.parametrize("model", [build("cnn-small"), Viewed()], ids=["narrow", "view"])
def test_where_it_does_not_pay_or_work_nothing_is_changed(model: nn.Module) -> None:
    with channels_last(model, torch.rand(1, 1, 28, 28)):
        assert not any(order(model))


@pytest.mark.parametrize(
    "model", [build("wrn-10-1", shape=(1, 8, 8), seed=2), Viewed()], ids=["wide", "view"]
)
def test_an_evaluation_has_it(model: nn.Module) -> None:
    seen: list[bool] = []
    model.register_forward_hook(lambda *_: seen.extend(order(model)))
    x, y = torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)
    atlas.evaluate(model, (x, y), threat=atlas.Linf(0.1), attacks={"PGD": PGD(steps=2)}, progress=False)
    assert seen[-1] is not isinstance(model, Viewed)
    assert not any(order(model))
