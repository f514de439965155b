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


def exported(net: nn.Module) -> nn.Module:
    batch = {0: torch.export.Dim("batch")}
    return torch.export.export(net, (torch.rand(8, 1, 4, 4),), dynamic_shapes=(batch,)).module()


@each_mode
@pytest.mark.parametrize("training", [False, True], ids=["exported in eval", "exported in train"])
def test_a_module_by_export_that_refuses_modes(mode: BatchNormMode, training: bool) -> None:
    """It stays in the mode of its export; what that changes is put back, as are the modes around it."""
    core = exported(model().train(training))
    with pytest.raises(NotImplementedError):
        core.eval()
    net = nn.Sequential(nn.Dropout(0.5), core, nn.BatchNorm1d(3))
    net[2].eval()
    before = snapshot(net)
    with frozen(net, mode):
        assert {m.training for m in net.modules()} == {mode == "train"}
        net(torch.rand(8, 1, 4, 4) * 9)
        assert not any(p.requires_grad for p in net.parameters())
        now = snapshot(net)["values"]
        moved = [k for k, v in before["values"].items() if k.startswith("1.") and not torch.equal(v, now[k])]
        assert bool(moved) == training, "the case is to exercise the buffers"
    assert_same(before, snapshot(net))
    x_adv = PGD(steps=2).craft(
        core, torch.rand(8, 1, 4, 4), torch.zeros(8).long(), Linf(0.1), Rng.batch(8), mode
    )
    assert x_adv.shape == (8, 1, 4, 4)
    assert_same(before, snapshot(net))


class Counts(nn.Module):
    """Counts its passes in any mode: in place, and in a buffer that it puts a new tensor into."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean().detach()
        return x.flatten(1)


@each_mode
def test_buffers_that_change_in_any_mode(mode: BatchNormMode) -> None:
    net = Counts()
    buffers = list(net.buffers())
    with frozen(net, mode):
        net(torch.rand(2, 3))
        assert [float(b) != 0 for b in net.buffers()] == [True, True]
    assert all(now is before for now, before in zip(net.buffers(), buffers, strict=True))
    assert [float(b) for b in net.buffers()] == [0, 0]


def test_a_graph_that_holds_the_buffers_can_still_be_gone_back_through() -> None:
    net, x = model().eval(), torch.rand(8, 1, 4, 4)
    loss = net(x).sum()
    PGD(steps=2).craft(net, x, torch.zeros(8, dtype=torch.int64), Linf(0.1), Rng.batch(8))
    loss.backward()
    assert net[5].weight.grad is not None
