"""What an attack is given: images, labels and a model with gradients, or a clear error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import ATTACKS, FGSM, PGD, Attack, frozen
from atlas.attacks.gradients import check_gradients, has_gradients
from atlas.errors import DataError, UsageError
from atlas.rng import Rng
from atlas.threat import Linf


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (x, y + 9), "labels go from 9 to .* and the model has 4 classes"),
        (lambda x, y: (x, y - 9), "labels must be >= 0, got labels from -9"),
        (lambda x, y: (x, torch.nn.functional.one_hot(y, 4)), "expected images .* and integer labels"),
        (lambda x, y: (x, y[:-1]), "expected images"),
        (lambda x, y: (x, y.float()), "integer labels"),
        (lambda x, y: (x[0, 0, 0], y), "expected images"),
        (lambda x, y: (x.numpy(), y), "must be tensors, got ndarray and Tensor"),
    ],
)
def test_what_an_attack_cannot_work_with_is_said(change: Any, words: str) -> None:
    x, y = torch.rand(8, 1, 4, 4), torch.arange(8) % 4
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4))
    with pytest.raises(DataError, match=words):
        PGD(steps=2)(model, *change(x, y), Linf(0.1))


def test_labels_may_be_any_whole_numbers() -> None:
    x, y = torch.rand(8, 1, 4, 4), torch.arange(8) % 4
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4))
    wanted = PGD(steps=2)(model, x, y, Linf(0.1), Rng.batch(8))
    assert torch.equal(PGD(steps=2)(model, x, y.int(), Linf(0.1), Rng.batch(8)), wanted)


NET = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
X = torch.rand(5, 1, 2, 2)


def without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return NET(x)  # type: ignore[no-any-return]


def by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().flatten(1).numpy()[:, :3].copy())


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (NET, True),
        (lambda x: NET((8 * x).round()), True),  # a gradient of 0 is one, and has a flag of its own
        (lambda x: NET(x.detach()), False),
        (lambda x: NET(x).detach(), False),
        (without_grad, False),
        (by_numpy, False),
    ],
    ids=["module", "rounding", "input detached", "output detached", "no_grad", "numpy"],
)
@pytest.mark.parametrize("held", [False, True], ids=["free", "frozen"])
def test_has_gradients(model: Callable[[Tensor], Tensor], wanted: bool, held: bool) -> None:
    with frozen(NET) if held else torch.no_grad():
        assert has_gradients(model, X) == wanted
    assert not X.requires_grad
    assert all(p.grad is None for p in NET.parameters())


@pytest.mark.parametrize("attack", [FGSM(), PGD()], ids=str)
def test_a_white_box_attack_on_such_a_model_is_refused_by_name(attack: Attack) -> None:
    with pytest.raises(
        UsageError, match=f"{type(attack).__name__} needs gradients and the model gives none"
    ) as e:
        check_gradients(without_grad, attack, X)
    offered = set(str(e.value).rpartition("only need its answers: ")[2].split(", "))
    assert offered - {""} == {name for name, kind in ATTACKS.items() if not kind.white_box}
    check_gradients(NET, attack, X)


def test_an_attack_that_only_asks_is_let_through_without_asking() -> None:
    class Asks(PGD):
        white_box = False

    def never(x: Tensor) -> Tensor:
        raise AssertionError("asked")

    check_gradients(never, Asks(), X)
    check_gradients(never, PGD(), X[:0])
