"""Per-example scalars, against numpy. The Jacobian's own tests are tests/oracle/test_jacobian.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atlas.objectives import (
    ATTACK_OBJECTIVES,
    cross_entropy,
    dlr,
    kl,
    margin,
    targeted_dlr,
    targeted_margin,
)

quick = settings(deadline=None, derandomize=True, max_examples=100)


@st.composite
def logits(draw: st.DrawFn, pairs: bool = False) -> tuple[Tensor, Tensor]:
    """[B, C] logits with labels, or two sets of logits."""
    shape = draw(st.integers(1, 4)), draw(st.integers(2, 7))
    values = st.lists(
        st.floats(-30, 30, allow_subnormal=False), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]
    )
    first = torch.tensor(draw(values), dtype=torch.float64).view(shape)
    if pairs:
        return first, torch.tensor(draw(values), dtype=torch.float64).view(shape)
    labels = st.lists(st.integers(0, shape[1] - 1), min_size=shape[0], max_size=shape[0])
    return first, torch.tensor(draw(labels))


def probabilities(z: Tensor) -> np.ndarray:
    e = np.exp(z.numpy() - z.numpy().max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


@quick
@given(logits())
def test_cross_entropy(case: tuple[Tensor, Tensor]) -> None:
    z, y = case
    wanted = -np.log(probabilities(z)[np.arange(len(y)), y.numpy()])
    np.testing.assert_allclose(cross_entropy(z, y), wanted, rtol=1e-9, atol=1e-12)


@quick
@given(logits(pairs=True))
def test_kl(case: tuple[Tensor, Tensor]) -> None:
    p, q = map(probabilities, case)
    wanted = (p * np.log(p / q)).sum(1)
    np.testing.assert_allclose(kl(*case), wanted, rtol=1e-8, atol=1e-10)
    assert (kl(*case) >= -1e-12).all()


@quick
@given(logits())
def test_kl_sees_differences_of_logits_only(case: tuple[Tensor, Tensor]) -> None:
    """A.2: equal differences between logits are enough for the global term to vanish."""
    z, _ = case
    assert kl(z, z).abs().max() < 1e-12
    assert kl(z + 3.0, z).abs().max() < 1e-12


def test_kl_gradients_through_both_arguments() -> None:
    """d/dz_q = q - p, and d/dz_p = p (log p/q - KL), by hand."""
    zp, zq = (torch.randn(3, 5, dtype=torch.float64).requires_grad_() for _ in range(2))
    value = kl(zp, zq)
    value.sum().backward()
    p, q = zp.detach().softmax(1), zq.detach().softmax(1)
    torch.testing.assert_close(zq.grad, q - p)
    torch.testing.assert_close(zp.grad, p * (torch.log(p / q) - value.detach()[:, None]))


def test_two_class_values_by_hand() -> None:
    """p = (0.8, 0.2), q = (0.4, 0.6), both ways round."""
    zp, zq = torch.log(torch.tensor([[0.8, 0.2], [0.4, 0.6]], dtype=torch.float64)).split(1)
    there = 0.8 * np.log(2) + 0.2 * np.log(1 / 3)
    back = 0.4 * np.log(0.5) + 0.6 * np.log(3)
    assert kl(zp, zq).item() == pytest.approx(there, rel=1e-12)
    assert kl(zq, zp).item() == pytest.approx(back, rel=1e-12)
    assert ATTACK_OBJECTIVES["kl"](zq, torch.tensor([0]), zp).item() == pytest.approx(there, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits(dtype: torch.dtype) -> None:
    zp = torch.tensor([[1e4, -1e4], [0.0, 1e4], [-1e4, 1e4]], dtype=dtype, requires_grad=True)
    zq = torch.tensor([[-1e4, 1e4], [1e4, 0.0], [-1e4, 1e4]], dtype=dtype, requires_grad=True)
    y = torch.tensor([1, 0, 1])
    for value in (kl(zp, zq), cross_entropy(zp, y), margin(zp, y)):
        assert value.isfinite().all()
        for gradient in torch.autograd.grad(value.sum(), [zp, zq], allow_unused=True):
            assert gradient is None or gradient.isfinite().all()
    torch.testing.assert_close(kl(zp, zq), torch.tensor([2e4, 1e4, 0.0], dtype=dtype))
    torch.testing.assert_close(cross_entropy(zp, y), torch.tensor([2e4, 1e4, 0.0], dtype=dtype))


@quick
@given(logits())
def test_margin(case: tuple[Tensor, Tensor]) -> None:
    z, y = case
    for got, row, label in zip(margin(z, y).tolist(), z.tolist(), y.tolist(), strict=True):
        best_other = max(v for i, v in enumerate(row) if i != label)
        assert got == best_other - row[label]


def test_margin_is_positive_exactly_where_the_class_is_wrong() -> None:
    z = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    y = torch.randint(4, (200,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(margin(z, y) > 0, z.argmax(1) != y)


def naive_dlr(row: list[float], y: int) -> float:
    """The definition, with a full sort, for one example; the margin below 3 classes."""
    ordered = sorted(row, reverse=True)
    gap = max(v for i, v in enumerate(row) if i != y) - row[y]
    return gap / (ordered[0] - ordered[2] + 1e-12) if len(row) >= 3 else gap


def naive_targeted_dlr(row: list[float], y: int, target: int) -> float:
    """The definition for one example; the difference itself below 4 classes."""
    ordered, gap = sorted(row, reverse=True), row[target] - row[y]
    return gap / (ordered[0] - (ordered[2] + ordered[3]) / 2 + 1e-12) if len(row) >= 4 else gap


def spread_logits(classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """[40, C] logits far from ties, labels and other labels as targets."""
    rng = np.random.default_rng(classes)
    z = rng.permuted(np.tile(np.arange(classes) * 0.7, (40, 1)), axis=1) + rng.uniform(0, 0.5, (40, classes))
    y = rng.integers(classes, size=40)
    target = (y + rng.integers(1, classes, size=40)) % classes
    return torch.tensor(z), torch.tensor(y), torch.tensor(target)


@pytest.mark.parametrize("classes", [2, 3, 4, 5, 10])
def test_dlr_by_its_definition(classes: int) -> None:
    z, y, target = spread_logits(classes)
    rows = list(zip(z.tolist(), y.tolist(), target.tolist(), strict=True))
    np.testing.assert_allclose(dlr(z, y), [naive_dlr(row, a) for row, a, _ in rows], rtol=1e-12)
    np.testing.assert_allclose(
        targeted_dlr(z, y, target), [naive_targeted_dlr(*row) for row in rows], rtol=1e-12
    )
    np.testing.assert_allclose(targeted_margin(z, y, target), [row[t] - row[a] for row, a, t in rows])


@pytest.mark.parametrize("classes", [2, 3, 4, 10])
def test_dlr_slopes_are_difference_quotients(classes: int) -> None:
    z, y, target = spread_logits(classes)
    h = 1e-6
    for value, naive in (
        (lambda v: dlr(v, y), lambda row, i: naive_dlr(row, int(y[i]))),
        (lambda v: targeted_dlr(v, y, target), lambda r, i: naive_targeted_dlr(r, int(y[i]), int(target[i]))),
    ):
        leaf = z.clone().requires_grad_()
        (slope,) = torch.autograd.grad(value(leaf).sum(), leaf)
        for i in range(0, 40, 7):
            for c in range(classes):
                up, down = z[i].clone(), z[i].clone()
                up[c] += h
                down[c] -= h
                quotient = (naive(up.tolist(), i) - naive(down.tolist(), i)) / (2 * h)
                assert slope[i, c].item() == pytest.approx(quotient, abs=1e-8)


@pytest.mark.parametrize("classes", [4, 10])
def test_dlr_sees_neither_shift_nor_scale(classes: int) -> None:
    z, y, target = spread_logits(classes)
    for other in (z + 11.0, z * 1e-3, z * 1e3):
        torch.testing.assert_close(dlr(other, y), dlr(z, y))
        torch.testing.assert_close(targeted_dlr(other, y, target), targeted_dlr(z, y, target))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dlr_of_equal_and_of_extreme_logits_is_finite(dtype: torch.dtype) -> None:
    z = torch.tensor([[0.0] * 5, [3.0, 3.0, 3.0, 1.0, 0.0], [1e4, -1e4, 0.0, 0.0, 0.0]], dtype=dtype)
    z.requires_grad_()
    y, target = torch.tensor([0, 3, 1]), torch.tensor([1, 0, 0])
    for value in (dlr(z, y), targeted_dlr(z, y, target)):
        assert value.isfinite().all()
        (slope,) = torch.autograd.grad(value.sum(), z)
        assert slope.isfinite().all()


@pytest.mark.parametrize("name", ATTACK_OBJECTIVES)
def test_attack_objectives_are_per_example(name: str) -> None:
    z, clean = torch.randn(2, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(6) % 5
    objective = ATTACK_OBJECTIVES[name]
    together = objective(z, y, clean)
    assert together.shape == (6,)
    alone = [objective(z[i : i + 1], y[i : i + 1], clean[i : i + 1]) for i in range(6)]
    torch.testing.assert_close(together, torch.cat(alone))
    if name != "kl":
        torch.testing.assert_close(objective(z, y, None), together)
