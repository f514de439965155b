"""The equations' costs and counts against what really runs, published figures and arithmetic by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from atlas import models
from atlas.errors import UsageError
from atlas.methods import METHODS, TrainingStep
from atlas.rng import Rng
from atlas.threat import Linf
from benchmarks.equations import EQUATIONS, MEASURED, Case, Flops, case, count_step, counts_of
from benchmarks.step import bare_of, random_batch, step_of

LABELS = (*MEASURED, "adv-3", "atlas_l-2", "atlas_g-2", "trades_jac-3")
SHAPES = {"cnn-small": (1, 8, 8), "cnn": (1, 8, 8), "wrn-10-1": (3, 8, 8)}


def network() -> nn.Sequential:
    """The layers at the ends cost next to nothing, because training needs no gradient of the images."""
    middle = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 256), nn.ReLU(), *middle, nn.Linear(256, 10))


def flops_of(model: nn.Module, label: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Of a step of ours, and of the bare passes."""
    found, batch = case(label), random_batch(8, shape)
    step, bare = step_of(model, found, batch, {}), bare_of(model, found, batch)
    assert bare is not None
    step()  # the first step also probes the Jacobian, as every fiftieth does
    counted = []
    for work in (step, bare):
        with Flops() as flops:
            work()
        counted.append(flops.total)
    return counted[0], counted[1]


@pytest.mark.parametrize("label", LABELS)
def test_flops_of_step_and_bare_passes_are_the_declared_cost(label: str) -> None:
    model = network()
    with Flops() as forward:
        model(torch.zeros(8, 1, 2, 2))
    for counted in flops_of(model, label, (1, 2, 2)):
        assert counted / forward.total == pytest.approx(case(label).cost, abs=0.1)


@pytest.mark.parametrize("label", LABELS)
def test_a_step_computes_no_more_than_the_equation_needs(label: str) -> None:
    """To the last FLOP, on a network whose first layer counts."""
    step, bare = flops_of(models.build("cnn-small", shape=(1, 8, 8)), label, (1, 8, 8))
    assert step == bare == count_step("cnn-small", case(label), (1, 8, 8), 10, 8).flops


@pytest.mark.parametrize(("label", "cost"), {"adv-1": 5, "atlas-1": 11, "adv-10": 23}.items())
def test_costs_are_those_of_the_paper(label: str, cost: int) -> None:
    assert case(label).cost == cost


def test_every_equation_belongs_to_a_method() -> None:
    assert set(EQUATIONS) <= set(METHODS)
    assert {"natural", "jac", "adv", "trades", "atlas"} <= set(EQUATIONS)


def test_step_and_bare_passes_update_the_same_way() -> None:
    """Without randomness the two are the same update, bit for bit."""
    weights = []
    for make in (lambda *a: step_of(*a, {}), bare_of):
        model = models.build("cnn-small", shape=(1, 8, 8))
        before = [p.clone() for p in model.parameters()]
        make(model, case("natural"), random_batch(8, (1, 8, 8)))()  # type: ignore[misc]
        assert not all(map(torch.equal, before, model.parameters()))
        weights.append(list(model.parameters()))
    assert all(map(torch.equal, *weights))


def test_bare_passes_leave_frozen_layers_frozen_and_the_model_in_training_mode() -> None:
    model = network().eval()
    model[-1].requires_grad_(False)
    kept = model[-1].weight.clone()
    bare = bare_of(model, case("trades-1"), random_batch(8, (1, 2, 2)))
    assert bare is not None
    bare()
    assert model.training
    assert [p.requires_grad for p in model.parameters()] == [True] * 10 + [False] * 2
    assert torch.equal(model[-1].weight, kept)


@pytest.mark.parametrize(
    ("label", "said"),
    [("atlas-x", "atlas"), ("adv-0", "adv"), ("atlass-1", "'atlas'"), ("natural-1", "takes no steps")],
)
def test_a_wrong_label_is_refused(label: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        case(label)


def test_steps_are_one_by_default() -> None:
    assert case("atlas") == case("atlas-1")
    assert case("natural").label == "natural"


def test_a_method_without_an_equation_has_no_cost_and_is_not_counted() -> None:
    found = Case("mine", SimpleNamespace(), 0, None)  # type: ignore[arg-type]
    assert found.cost is None
    with pytest.raises(UsageError, match="'mine' has no equation"):
        count_step("cnn-small", found, (1, 8, 8), 10, 2)


def test_flops_and_activations_of_a_small_network_by_hand() -> None:
    """cnn-small on 8x8: conv 4x4x16 at 4x4 places, conv 16x4x4x32 at 2x2, 128 to 100 to 10; times two.

    It keeps the image, three ReLUs and the log-probabilities, the labels and a sum.
    """
    first, second, third, last = (2 * n for n in (16 * 16 * 16, 4 * 256 * 32, 128 * 100, 100 * 10))
    forward = first + second + third + last
    found = count_step("cnn-small", case("adv-3"), (1, 8, 8), 10, 7)
    assert found.flops == 7 * (3 * 2 * forward + forward + 2 * forward - first)
    numbers = 64 + 16 * 4 * 4 + 32 * 2 * 2 + 100 + 10
    assert found.saved == pytest.approx(7 * (4 * numbers + 8), abs=8)
    assert found.saved == count_step("cnn-small", case("adv-1"), (1, 8, 8), 10, 7).saved


class Unique(saved_tensors_hooks):
    """All memory that is ever saved, by its address: another way to count."""

    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}
        super().__init__(self.note, lambda tensor: tensor)

    def note(self, tensor: Tensor) -> Tensor:
        self.kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    def bytes_beside(self, model: nn.Module) -> int:
        own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
        return sum(t.untyped_storage().nbytes() for key, t in self.kept.items() if key not in own)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("label", ["natural", "jac", "trades-1", "atlas-1"])
def test_activations_are_what_torch_really_saves(name: str, label: str) -> None:
    """In a step on real images, after the attack."""
    shape, found = SHAPES[name], case(label)
    model, x, saved = models.build(name, shape=shape), torch.rand(6, *shape), Unique()
    with saved:
        step, y = TrainingStep(Linf(0.1), Rng.lanes(0, torch.arange(6))), torch.zeros(6).long()
        losses, _ = found.method.terms(model, x, x.clone(), y, step)
        loss = found.method.weigh(losses)
        kept = saved.bytes_beside(model)
    loss.backward()  # type: ignore[no-untyped-call]
    assert count_step(name, found, shape, 10, 6).saved == kept
    assert counts_of(model, found, x, 10).saved == kept, "and the same where tensors have values"
