"""One table: every registered model keeps the same promises."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atlas.errors import UsageError
from atlas.models import MODELS, build, count_parameters

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def wrn_size(depth: int, width: int, channels: int = 3, classes: int = 10) -> int:
    """The number of weights, by the arithmetic of the WRN paper and not by our modules."""
    total, before = channels * 9 * 16, 16
    for now in (16 * width, 32 * width, 64 * width):
        for _ in range((depth - 4) // 6):
            total += 2 * before + 9 * before * now + 2 * now + 9 * now * now
            total += before * now if before != now else 0
            before = now
    return total + 2 * before + before * classes + classes


SIZES = {
    "cnn": (MNIST, 3_274_634),
    "cnn-small": (MNIST, 166_406),
    "preact-resnet18": (CIFAR, 11_172_170),
    "wrn-10-1": (CIFAR, wrn_size(10, 1)),
    "wrn-16-2": (CIFAR, wrn_size(16, 2)),
    "wrn-28-8": (CIFAR, 23_354_842),
}
every_model = pytest.mark.parametrize("name", MODELS)


def tiny(name: str, seed: int = 0, channels: int = 2, classes: int = 4) -> nn.Module:
    side = MODELS[name].smallest
    return build(name, classes, (channels, side, side), seed=seed)


def tiny_batch(name: str, size: int = 3, channels: int = 2) -> Tensor:
    side = MODELS[name].smallest
    return torch.rand(size, channels, side, side, generator=torch.Generator().manual_seed(1))


def test_the_table_has_every_model() -> None:
    assert SIZES.keys() == MODELS.keys()
    assert all(entry.description and "\n" not in entry.description for entry in MODELS.values())


@pytest.mark.parametrize(("name", "shape", "size"), [(name, *row) for name, row in SIZES.items()])
def test_number_of_weights(name: str, shape: tuple[int, int, int], size: int) -> None:
    assert count_parameters(build(name, 10, shape)) == size


@every_model
@pytest.mark.parametrize("shape", [MNIST, CIFAR, (2, 9, 14)])
def test_logits_have_one_column_a_class(name: str, shape: tuple[int, int, int]) -> None:
    model = build(name, 7, shape).eval()
    with torch.no_grad():
        assert model(torch.rand(2, *shape)).shape == (2, 7)


@every_model
def test_weights_are_a_function_of_the_seed(name: str) -> None:
    first, same, other = (tiny(name, seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[key], same[key]) for key in first)
    drawn = [key for key in first if key.endswith("weight") and first[key].dim() > 1]
    assert drawn
    assert not any(torch.equal(first[key], other[key]) for key in drawn)


@every_model
def test_building_leaves_the_global_random_state(name: str) -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    tiny(name)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2])


@every_model
def test_weights_do_not_depend_on_the_global_random_state_or_the_default_device(name: str) -> None:
    first = tiny(name).state_dict()
    torch.rand(5)
    with torch.device("meta"):
        second = tiny(name).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


@every_model
def test_modes(name: str) -> None:
    model, x = tiny(name), tiny_batch(name)
    assert all(module.training for module in model.modules())
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    model.eval()
    with torch.no_grad():
        alone = torch.cat([model(image[None]) for image in x])
        torch.testing.assert_close(model(x), alone, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, buffers[key]) for key, value in model.named_buffers())


def squared_jacobian(model: nn.Module, x: Tensor, v: Tensor) -> Tensor:
    """||v^T J(x)||^2 summed over the batch, with a graph: what the Jacobian term differentiates."""
    x = x.clone().requires_grad_()
    (row,) = torch.autograd.grad((model(x) * v).sum(), x, create_graph=True)
    return row.square().sum()


@every_model
def test_double_backward_agrees_with_a_finite_difference(name: str) -> None:
    model, x = tiny(name).double().eval(), tiny_batch(name, size=2).double()
    generator = torch.Generator().manual_seed(2)
    v = torch.randn(2, 4, dtype=torch.float64, generator=generator)
    weights = [weight for weight in model.parameters() if weight.dim() > 1]
    ways = [torch.randn(w.shape, dtype=torch.float64, generator=generator) * w.std() for w in weights]
    gradients = torch.autograd.grad(squared_jacobian(model, x, v), weights)
    slope = sum((g * way).sum().item() for g, way in zip(gradients, ways, strict=True))

    def moved(step: float) -> float:
        with torch.no_grad():
            for weight, way in zip(weights, ways, strict=True):
                weight.add_(way, alpha=step)
        value = squared_jacobian(model, x, v).item()
        with torch.no_grad():
            for weight, way in zip(weights, ways, strict=True):
                weight.sub_(way, alpha=step)
        return value

    step = 1e-7
    assert slope == pytest.approx((moved(step) - moved(-step)) / (2 * step), rel=1e-4)


@every_model
def test_train_mode_can_be_differentiated_twice(name: str) -> None:
    model, x = tiny(name), tiny_batch(name, 4)
    squared_jacobian(model, x, torch.ones(4, 4)).backward()
    first = next(model.parameters())
    assert first.grad is not None
    assert first.grad.isfinite().all()
    assert first.grad.abs().sum() > 0


@every_model
def test_too_small_an_image_is_refused_with_the_size_it_needs(name: str) -> None:
    side = MODELS[name].smallest
    with pytest.raises(UsageError, match=f"{name}.*{side}x{side}.*\\(1, {side}, {side - 1}\\)"):
        build(name, 10, (1, side, side - 1))
