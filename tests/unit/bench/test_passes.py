"""The declared passes against what really runs: calls that are counted, and FLOPs that torch counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from atlas import bench, models
from atlas.methods import METHODS

LABELS = (*bench.MEASURED, "adv-3", "atlas_l-2", "atlas_g-2", "trades_jac-3")
REFERENCE_BOUNDS = {"adv-1": 5, "atlas-1": 11, "adv-10": 23}


def network() -> nn.Sequential:
    """The layers at the ends cost next to nothing, because their passes are not all needed.

    (No gradient with respect to the images is needed to train on them.)
    """
    middle = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 256), nn.ReLU(), *middle, nn.Linear(256, 10))


def pair(label: str, model: nn.Module, shape: tuple[int, int, int] = (1, 2, 2)) -> bench.Pair:
    (made,) = bench.pairs(model, [bench.case(label)], bench.random_batch(8, shape))
    made.step()  # the first step also looks at the Jacobian, as every fiftieth does
    return made


class Flops(TorchDispatchMode):
    """Sums torch's own formulas over all operations. (Its counter refuses gradients of the input.)"""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        self.total += formula(*args, **(kwargs or {}), out_val=out) if formula else 0
        return out


def flops(run: Callable[[], object]) -> int:
    with Flops() as counter:
        run()
    return counter.total


@pytest.mark.parametrize("label", LABELS)
def test_flops_of_step_and_bare_are_the_declared_passes(label: str) -> None:
    model = network()
    made, passes = pair(label, model), bench.case(label).passes
    assert made.bare is not None
    assert passes is not None
    forward = flops(lambda: model(torch.zeros(8, 1, 2, 2)))
    assert flops(made.bare) / forward == pytest.approx(passes.cost, abs=0.1)
    assert flops(made.step) / forward == pytest.approx(passes.cost, abs=0.1)


@pytest.mark.parametrize("label", LABELS)
def test_a_step_does_no_more_than_the_equation_needs(label: str) -> None:
    """To the last FLOP, on a network whose first layer counts."""
    made = pair(label, models.build("cnn-small", shape=(1, 8, 8)), (1, 8, 8))
    assert made.bare is not None
    needed = flops(made.bare)
    assert flops(made.step) == needed


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("which", ["step", "bare"])
def test_calls_are_the_declared_passes(label: str, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    run, passes = getattr(pair(label, model), which), bench.case(label).passes
    assert passes is not None
    calls: Counter[str] = Counter()
    model.register_forward_pre_hook(lambda module, args: calls.update(["forward"]))
    gradient, backward = torch.autograd.grad, Tensor.backward

    def counted_gradient(*args: Any, create_graph: bool = False, **rest: Any) -> tuple[Tensor, ...]:
        assert create_graph == model.training, "the attack differentiates a model that stands still"
        calls["jacobian" if create_graph else "input_gradient"] += 1
        return gradient(*args, create_graph=create_graph, **rest)

    def counted_backward(*args: Any, **rest: Any) -> None:
        calls["update"] += 1
        backward(*args, **rest)

    monkeypatch.setattr(torch.autograd, "grad", counted_gradient)
    monkeypatch.setattr(Tensor, "backward", counted_backward)
    run()
    declared = {name: getattr(passes, name) for name in ("forward", "input_gradient", "jacobian")}
    assert calls == Counter({**declared, "update": 1})


@pytest.mark.parametrize(("label", "cost"), REFERENCE_BOUNDS.items())
def test_bounds_are_those_of_the_paper(label: str, cost: int) -> None:
    passes = bench.case(label).passes
    assert passes is not None
    assert passes.cost == cost


def test_every_method_has_an_equation() -> None:
    assert set(bench.EQUATIONS) == set(METHODS)


def test_step_and_bare_update_the_same_way() -> None:
    """Without randomness the two are the same update, bit for bit: a step of the same loss."""
    weights = []
    for which in ("step", "bare"):
        model = models.build("cnn-small", shape=(1, 8, 8))
        (made,) = bench.pairs(model, [bench.case("natural")], bench.random_batch(8, (1, 8, 8)))
        before = [p.clone() for p in model.parameters()]
        getattr(made, which)()
        assert not all(map(torch.equal, before, model.parameters()))
        weights.append(list(model.parameters()))
    assert all(map(torch.equal, *weights))


def test_bare_leaves_a_model_that_can_go_on_learning() -> None:
    """And a layer that its owner keeps as it is stays so."""
    model = network().eval()
    model[-1].requires_grad_(False)
    kept = model[-1].weight.clone()
    made = pair("trades-1", model)
    assert made.bare is not None
    made.bare()
    assert model.training
    assert [p.requires_grad for p in model.parameters()] == [True] * 10 + [False] * 2
    assert torch.equal(model[-1].weight, kept)
