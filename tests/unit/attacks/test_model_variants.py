"""A model under attack: it stands still, its forms give the same answers, and afterwards it is as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atlas
from atlas.attacks import FGSM, PGD, Attack, BatchNormMode, Square, TargetedFAB, model_variants
from atlas.attacks.engine import predict
from atlas.attacks.model_variants import FastGradConv2d, averaged, channels_last, frozen, searched
from atlas.errors import UsageError
from atlas.models import build
from atlas.models.source import fingerprint
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
@pytest.mark.parametrize("fails", [False, True])
def test_as_before_after_use_and_after_an_exception(mode: BatchNormMode, fails: bool) -> None:
    net = model()
    before = snapshot(net)
    assert {*before["modes"]} == {True, False}
    with pytest.raises(KeyError) if fails else nullcontext(), frozen(net, mode):
        net(torch.rand(8, 1, 4, 4) * 9)
        moved = not torch.equal(net[1].running_mean, before["values"]["1.running_mean"])
        assert moved == (mode == "train"), "the case is to exercise the buffers"
        if fails:
            raise KeyError
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
