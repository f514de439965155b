"""The Jacobian term: unbiased, exact where asked, differentiable twice, in full precision.

The oracle is `torch.func.jacrev`, and for ReLU networks the product of their matrices in numpy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from atlas.objectives import (
    Projections,
    logits_and_squared_jacobian,
    squared_jacobian,
    squared_secant,
)
from atlas.rng import Rng

SAMPLES = 4096


def seeded(seed: int, *modules: Callable[[], nn.Module]) -> nn.Sequential:
    """A float64 network in eval mode whose BatchNorm statistics are not the neutral ones."""
    torch.manual_seed(seed)
    model = nn.Sequential(*[make() for make in modules]).double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return model


def mlp(seed: int, classes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return seeded(seed, nn.Flatten, lambda: nn.Linear(48, 16), activation, lambda: nn.Linear(16, classes))


def conv(seed: int, classes: int) -> nn.Sequential:
    return seeded(
        seed,
        lambda: nn.Conv2d(3, 5, 3),
        lambda: nn.BatchNorm2d(5),
        nn.ReLU,
        nn.Flatten,
        lambda: nn.Linear(20, classes),
    )


NETWORKS = {
    "mlp, 2 classes": mlp(0, 2),
    "mlp, 10 classes": mlp(1, 10),
    "smooth, 5 classes": mlp(2, 5, nn.Softplus),
    "conv, 3 classes": conv(3, 3),
    "conv, 20 classes": conv(4, 20),
}
each_network = pytest.mark.parametrize("model", NETWORKS.values(), ids=NETWORKS.keys())


def images(seed: int, count: int) -> Tensor:
    return torch.rand(count, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def jacobians(model: nn.Module, x: Tensor) -> Tensor:
    """J [B, C, N] of each example by itself."""
    return vmap(jacrev(lambda one: model(one[None])[0]))(x).flatten(2).detach()


def squared(model: nn.Module, x: Tensor, rng: Rng, projections: Projections) -> Tensor:
    return logits_and_squared_jacobian(model, x, rng, projections)[1].detach()


@each_network
@pytest.mark.parametrize("seed", [0, 1])
def test_one_projection_is_unbiased(model: nn.Module, seed: int) -> None:
    """The mean of 4,096 independent projections is within 3 standard errors of the exact value."""
    x = images(seed, 1)
    exact = jacobians(model, x).square().sum().item()
    drawn = squared(model, x.expand(SAMPLES, -1, -1, -1), Rng.batch(SAMPLES, seed=seed), 1)
    error = drawn.std().item() / SAMPLES**0.5
    assert error < 0.05 * exact, "too noisy to tell"
    assert abs(drawn.mean().item() - exact) < 3 * error


@each_network
def test_many_projections_of_one_example_are_unbiased(model: nn.Module) -> None:
    """The same through `projections`: 512 of them on each of 8 examples make 4,096."""
    x = images(2, 8)
    exact = jacobians(model, x).square().sum((1, 2))
    ratio = squared(model, x, Rng.batch(8, seed=3), SAMPLES // 8) / exact
    one = squared(model, x.repeat(512, 1, 1, 1), Rng.batch(SAMPLES), 1).view(512, 8) / exact
    assert abs(ratio.mean().item() - 1) < 3 * one.std().item() / SAMPLES**0.5


@each_network
def test_exact_is_jacrev(model: nn.Module) -> None:
    x = images(4, 6)
    wanted = jacobians(model, x).square().sum((1, 2))
    torch.testing.assert_close(squared(model, x, Rng.batch(6), "exact"), wanted, rtol=1e-10, atol=1e-10)


def test_exact_is_the_product_of_the_matrices(relu_net: Callable[..., Any]) -> None:
    net = relu_net(7, (48, 20, 10, 6))
    x = images(5, 6)
    wanted = (net.jacobian(x.numpy()) ** 2).sum((1, 2))
    np.testing.assert_allclose(squared(net.torch_module(), x, Rng.batch(6), "exact"), wanted, rtol=1e-10)


@each_network
@pytest.mark.parametrize("projections", [1, 2, 5])
def test_projections_average(model: nn.Module, projections: int) -> None:
    """(C / n) sum_k ||v_k^T J||^2 for the n directions that the streams give."""
    x, rng = images(6, 4), Rng.batch(4, seed=8)
    jacobian = jacobians(model, x)
    classes = jacobian.shape[1]
    rows = [
        torch.einsum("bc,bcn->bn", rng.fold("projection", k).sphere(classes, torch.float64), jacobian)
        for k in range(projections)
    ]
    wanted = classes * torch.stack([row.square().sum(1) for row in rows]).mean(0)
    torch.testing.assert_close(squared(model, x, rng, projections), wanted, rtol=1e-10, atol=1e-10)


def test_logits_come_from_the_same_pass() -> None:
    model, x, calls = mlp(0, 10), images(7, 3), []
    model.register_forward_hook(lambda *_: calls.append(1))
    logits, _ = logits_and_squared_jacobian(model, x, Rng.batch(3), 3)
    assert len(calls) == 1
    torch.testing.assert_close(logits, model(x), rtol=0, atol=0)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Softplus, nn.ReLU])
@pytest.mark.parametrize("projections", [1, 2, "exact"])
def test_gradcheck_in_the_weights(activation: type[nn.Module], projections: Projections) -> None:
    """What training follows: d ||J||^2 / d theta, against central differences."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 3)).double()
    names, weights = zip(*model.named_parameters(), strict=True)
    x = torch.rand(2, 3, dtype=torch.float64)

    def term(*values: Tensor) -> Tensor:
        def f(pixels: Tensor) -> Tensor:
            return functional_call(model, dict(zip(names, values, strict=True)), (pixels,))  # type: ignore[no-any-return]

        return logits_and_squared_jacobian(f, x, Rng.batch(2, seed=5), projections)[1]

    inputs = [w.detach().clone().requires_grad_() for w in weights]
    assert torch.autograd.gradcheck(term, inputs)
    if activation is not nn.ReLU:
        assert torch.autograd.gradgradcheck(term, inputs)


def test_full_precision_under_autocast() -> None:
    """bfloat16 has 8 bits: inside autocast, value and gradient are the very ones of float32."""
    model = mlp(0, 10).float()
    x, rng = images(8, 5).float(), Rng.batch(5)
    weights = list(model.parameters())[:3]  # the last bias has no part in J
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            assert model(x).dtype == (torch.bfloat16 if enabled else torch.float32)
            logits, jac = logits_and_squared_jacobian(model, x, rng)
        found.append([logits, jac, *torch.autograd.grad(jac.sum(), weights)])
    for plain, cast in zip(*found, strict=True):
        assert cast.dtype == torch.float32
        assert torch.equal(plain, cast)


def test_without_gradients_it_is_a_measurement_that_leaves_nothing() -> None:
    model, x, rng = mlp(0, 10), images(9, 5), Rng.batch(5)
    wanted = squared(model, x, rng, 1)
    with torch.no_grad():
        _, probed = logits_and_squared_jacobian(model, x, rng)
    assert torch.equal(probed, wanted)
    assert not probed.requires_grad
    assert not x.requires_grad
    assert all(p.grad is None for p in model.parameters())


def test_without_create_graph_there_is_nothing_to_follow() -> None:
    model, x = mlp(0, 3), images(9, 2).requires_grad_()
    rng = Rng.batch(2)
    assert not squared_jacobian(model(x), x, rng, create_graph=False).requires_grad
    assert squared_jacobian(model(x), x, rng).requires_grad


def secant(model: nn.Module, x: Tensor, seed: int, length: float) -> Tensor:
    return squared_secant(model, model(x), x, Rng.batch(len(x), seed=seed), length).detach()


@pytest.mark.parametrize("length", [1e-3, 0.05, 1.0])
def test_the_secant_of_a_linear_model_is_unbiased_and_has_the_variance_of_its_quadratic_form(
    length: float,
) -> None:
    """||J u||^2 with u ~ N(0, I) has mean ||J||_F^2 and variance 2 ||J J^T||_F^2, whatever the length."""
    model = seeded(5, nn.Flatten, lambda: nn.Linear(48, 6))
    weight = model[1].weight.detach()
    mean, variance = weight.square().sum().item(), 2 * (weight @ weight.T).square().sum().item()
    drawn = secant(model, images(10, 1).expand(SAMPLES, -1, -1, -1), 4, length)
    assert abs(drawn.mean().item() - mean) < 3 * (variance / SAMPLES) ** 0.5
    assert drawn.var().item() == pytest.approx(variance, rel=0.15)


@each_network
@pytest.mark.parametrize(("dtype", "length"), [(torch.float64, 1e-4), (torch.float32, 1e-3)])
def test_a_short_secant_is_unbiased(model: nn.Module, dtype: torch.dtype, length: float) -> None:
    x = images(11, 1)
    exact = jacobians(model, x).square().sum().item()
    model = copy.deepcopy(model).to(dtype)
    drawn = secant(model, x.to(dtype).expand(SAMPLES, -1, -1, -1), 5, length).double()
    assert abs(drawn.mean().item() - exact) < 3 * drawn.std().item() / SAMPLES**0.5 + 1e-3 * exact


def test_rounding_to_bfloat16_adds_what_it_should_to_the_secant() -> None:
    """Two answers rounded to 8 bits differ by rounding alone, which weighs 1 / h^2: little at h = 0.05."""
    model, x = mlp(1, 10).float(), images(12, 1).float().expand(SAMPLES, -1, -1, -1)
    exact = secant(model, x, 6, 0.05).mean().item()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = squared_secant(
            lambda at: model(at).float(), model(x).float(), x, Rng.batch(SAMPLES, seed=6), 0.05
        )
        short = squared_secant(
            lambda at: model(at).float(), model(x).float(), x, Rng.batch(SAMPLES, seed=6), 1e-3
        )
    assert rounded.mean().item() == pytest.approx(exact, rel=0.02)
    assert short.mean().item() > 2 * exact, "so the length has to be chosen with the precision"


def test_the_gradient_of_a_short_secant_is_that_of_the_exact_norm() -> None:
    """In the weights, on the mean over many draws."""
    model, x = conv(3, 3), images(13, 1)
    weights = list(model.parameters())[:-1]  # the last bias has no part in J
    drawn = squared_secant(
        model, model(many := x.expand(SAMPLES, -1, -1, -1)), many, Rng.batch(SAMPLES), 1e-4
    )
    exact = logits_and_squared_jacobian(model, x, Rng.batch(1), "exact")[1]
    ours, wanted = (
        torch.cat([g.flatten() for g in torch.autograd.grad(term.mean(), weights)]) for term in (drawn, exact)
    )
    assert ((ours - wanted).norm() / wanted.norm()).item() < 0.1


def test_under_batch_norm_in_train_mode_the_secant_sees_the_whole_batch() -> None:
    """Its mean is sum_j ||df(x_i)/dx_j||^2: each image has its own noise, and moves the others a little."""
    model, x = conv(3, 3).train(), images(15, 3)
    whole = torch.autograd.functional.jacobian(model, x)  # [B, C, B, ...]
    exact = whole.square().flatten(1).sum(1)
    draws = torch.stack([secant(model, x, seed, 1e-4) for seed in range(1500)])
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - exact).abs() < 4 * error).all()
    assert (exact > whole.diagonal(dim1=0, dim2=2).square().sum((0, 1, 2, 3)) * 1.01).all()
