"""Models of any kind come back from an evaluation as they were, also when they fail in the middle of it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atlas
from atlas.attacks import PGD, Square
from atlas.errors import UsageError

X, Y = torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
ATTACKS = {"PGD": PGD(steps=4), "Square": Square(queries=5)}


class Net(nn.Sequential):
    """BatchNorm and dropout in training mode, a part that is frozen for good, hooks, and gradients."""

    def __init__(self, fails_at: int = 0) -> None:
        torch.manual_seed(1)
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 3)
        )
        self.fails_at, self.passes, self.heard = fails_at, 0, 0
        self[0].requires_grad_(False)
        self.train()
        super().forward(X).sum().backward()
        self[4].register_forward_hook(self.hear)
        self[4].register_full_backward_hook(self.hear)
        self[0].register_forward_pre_hook(self.hear)

    def hear(self, *_: object) -> None:
        self.heard += 1

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.passes == self.fails_at:
            raise KeyError("the model's own")
        return super().forward(x)


def as_it_is(net: Net) -> dict[str, Any]:
    return {
        "modes": [module.training for module in net.modules()],
        "kinds": [type(module) for module in net.modules()],
        "requires_grad": [p.requires_grad for p in net.parameters()],
        "grads": [None if p.grad is None else p.grad.tolist() for p in net.parameters()],
        "values": {k: v.tolist() for k, v in net.state_dict().items()},
        "hooks": [
            dict(hooks)
            for module in net.modules()
            for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        ],
        "random": torch.get_rng_state().tolist(),
        "signals": signal.getsignal(signal.SIGTERM),
    }


def evaluated(net: Net, folder: Path | None = None) -> atlas.evaluation.Report:
    return atlas.evaluate(net, (X, Y), atlas.Linf(0.1), attacks=ATTACKS, folder=folder, progress=False)


def test_it_comes_back_as_it_was_and_was_heard() -> None:
    net = Net()
    before = as_it_is(net)
    report = evaluated(net)
    assert report.valid, "dropout is off, or it would be called random"
    assert as_it_is(net) == before
    assert net.heard > net.passes, "its hooks were called all along"


@pytest.mark.parametrize("fails_at", [1, 2, 6, 15])
def test_it_comes_back_as_it_was_after_it_failed(fails_at: int, tmp_path: Path) -> None:
    net = Net(fails_at)
    before = as_it_is(net)
    with pytest.raises((KeyError, UsageError), match="the model's own"):
        evaluated(net, tmp_path)
    assert as_it_is(net) == before
    assert (tmp_path / "lock").read_bytes() == b""
    whole = evaluated(Net()).summary()
    assert evaluated(net, tmp_path).summary() == whole, "and the same evaluation goes on"


def test_an_attack_leaves_it_as_it_was_after_it_failed() -> None:
    net = Net(fails_at=3)
    before = as_it_is(net)
    with pytest.raises(KeyError, match="the model's own"):
        PGD(steps=5)(net, X, Y, atlas.Linf(0.1), atlas.Rng.batch(len(X)))
    assert as_it_is(net) == before


def test_a_function_is_as_good() -> None:
    net = Net().eval()
    of_module = evaluated(net)
    of_function = atlas.evaluate(lambda x: net(x), (X, Y), atlas.Linf(0.1), attacks=ATTACKS, progress=False)
    assert of_function.robust.tolist() == of_module.robust.tolist()


def test_a_model_without_values_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="on the device meta, which holds no values"):
        evaluated(Net().to("meta"))
    torn = Net()
    torn[4].to("meta")
    with pytest.raises(UsageError, match="on the device meta, which holds no values"):
        evaluated(torn)


def test_the_default_device_changes_nothing(tmp_path: Path) -> None:
    images = atlas.data.load("mnist-mini", train=False).subset(slice(6))
    model = atlas.models.build("cnn-small", normalize=((0.1,), (0.3,)))
    expected = atlas.evaluate(model, images, atlas.Linf(0.1), progress=False)
    with torch.device("meta"):
        found = atlas.evaluate(model, images, atlas.Linf(0.1), folder=tmp_path, progress=False)
    assert found.summary() == expected.summary()
