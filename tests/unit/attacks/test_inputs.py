"""What an attack is called with: images and labels, or a clear word."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from atlas.attacks import PGD
from atlas.errors import DataError
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
