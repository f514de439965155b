"""While an attack runs the model stands still; afterwards it is exactly as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import FGSM, PGD, BatchNormMode, frozen
from atlas.rng import Rng
from atlas.threat import Linf

each_mode = pytest.mark.parametrize("mode", ["eval", "train"])


def model() -> nn.Sequential:
    """BatchNorm with statistics of its own, dropout, modules in mixed modes, some weights frozen for good."""
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 3)
    )
    made(torch.rand(8, 1, 4, 4))
    made[1].eval()
    made[0].weight.requires_grad_(False)
    return made


def snapshot(of: nn.Module) -> dict[str, Any]:
    return {
        "modes": [m.training for m in of.modules()],
        "requires_grad": [p.requires_grad for p in of.parameters()],
        "grads": [p.grad for p in of.parameters()],
        "values": {k: v.clone() for k, v in of.state_dict().items()},
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert {k: v for k, v in before.items() if k != "values"} == {
        k: v for k, v in after.items() if k != "values"
    }
    assert all(torch.equal(v, after["values"][k]) for k, v in before["values"].items())


@each_mode
def test_inside(mode: BatchNormMode) -> None:
    net = model()
    with frozen(net, mode):
        assert {m.training for m in net.modules()} == {mode == "train"}
        assert not any(p.requires_grad for p in net.parameters())


@each_mode
def test_as_before_after_use(mode: BatchNormMode) -> None:
    net = model()
    before = snapshot(net)
    assert True in before["modes"]
    assert False in before["modes"]
    with frozen(net, mode):
        net(torch.rand(8, 1, 4, 4) * 9)
        moved = not torch.equal(net[1].running_mean, before["values"]["1.running_mean"])
        assert moved == (mode == "train"), "the case is to exercise the buffers"
    assert_same(before, snapshot(net))


@each_mode
def test_as_before_after_an_exception(mode: BatchNormMode) -> None:
    net = model()
    before = snapshot(net)

    def fail() -> None:
        with frozen(net, mode):
            net(torch.rand(8, 1, 4, 4) * 9)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert_same(before, snapshot(net))


@each_mode
def test_nested(mode: BatchNormMode) -> None:
    net = model()
    before = snapshot(net)
    with frozen(net, mode):
        with frozen(net):
            net(torch.rand(2, 1, 4, 4))
        assert {m.training for m in net.modules()} == {mode == "train"}
        assert not any(p.requires_grad for p in net.parameters())
    assert_same(before, snapshot(net))


@each_mode
@pytest.mark.parametrize("attack", [FGSM(), PGD(steps=3, restarts=2, objective="kl")], ids=str)
def test_crafting_leaves_no_trace(attack: PGD, mode: BatchNormMode) -> None:
    net, x = model(), torch.rand(8, 1, 4, 4)
    before = snapshot(net)
    x_adv = attack.craft(net, x, torch.zeros(8, dtype=torch.int64), Linf(0.1), Rng.batch(8), mode)
    assert_same(before, snapshot(net))
    assert not x_adv.requires_grad
    assert not x.requires_grad


@each_mode
def test_a_model_that_fails_in_the_middle(mode: BatchNormMode) -> None:
    net, x, calls = model(), torch.rand(8, 1, 4, 4), []

    def trip(*_: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of memory")

    net[5].register_forward_hook(trip)
    before = snapshot(net)
    with pytest.raises(RuntimeError, match="out of memory"):
        PGD(steps=5).craft(net, x, torch.zeros(8, dtype=torch.int64), Linf(0.1), Rng.batch(8), mode)
    assert_same(before, snapshot(net))


def test_existing_gradients_are_left_alone() -> None:
    """Somebody who accumulates gradients over batches keeps them, to the bit."""
    net, x = model(), torch.rand(8, 1, 4, 4)
    net(x).sum().backward()
    kept = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    PGD(steps=2).craft(net, x, torch.zeros(8, dtype=torch.int64), Linf(0.1), Rng.batch(8))
    for p, before in zip(net.parameters(), kept, strict=True):
        assert (p.grad is None) == (before is None)
        assert before is None or (p.grad is not None and torch.equal(p.grad, before))


def test_batchnorm_mode_decides_what_is_attacked() -> None:
    """In "train" mode the batch's own statistics count, so the adversaries differ."""
    net, x, y = model().double(), torch.rand(8, 1, 4, 4).double() * 0.2, torch.zeros(8, dtype=torch.int64)
    net[3] = nn.Identity()
    crafted = {
        mode: FGSM().craft(net, x, y, Linf(0.1), Rng.batch(8), mode)  # type: ignore[arg-type]
        for mode in ("eval", "train")
    }
    assert not torch.equal(crafted["eval"], crafted["train"])


def test_any_callable_can_be_attacked() -> None:
    def double(x: Tensor) -> Tensor:
        return 2 * x

    function: Callable[[Tensor], Tensor] = double
    with frozen(function):
        assert function(torch.ones(1)).item() == 2
