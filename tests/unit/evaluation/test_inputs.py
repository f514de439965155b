"""What is no model of these images is refused before anything runs, and the error says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas.data import Images
from atlas.errors import CheckpointError, DataError, UsageError
from atlas.evaluation.run_attack import check_model
from atlas.threat import Linf

X, Y = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
IMAGES = Images(X, Y, 3)
NET = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def test_a_good_model_is_taken_and_is_as_before() -> None:
    model, kept = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 3)), X.clone()
    check_model(model, X, IMAGES)
    assert all(m.training for m in model.modules())
    assert int(model[1].num_batches_tracked) == 0
    assert torch.equal(X, kept)
    check_model(lambda x: x.flatten(1), X, IMAGES)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (
            Y + 7,
            r"labels go up to 9 and the model has 3 classes, .* 0 to 2: is it the model of this data set",
        ),
        (Y + 1, "the model has 3 classes, .*class 0 has no image: labels go from 1 to 3"),
    ],
)
def test_labels_beyond_the_model_s_classes_are_refused(y: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_model(NET, X, Images(X, y, int(y.max()) + 1))


def broken(x: Tensor) -> Tensor:
    raise KeyError("of the model")


BAD_MODELS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a tuple": (
        lambda x: (NET(x), x),
        r"gives a tuple; expected a model .* --output 0, in Python .* lambda x: model\(x\)\[0\]",
    ),
    "a dict": (
        lambda x: {"loss": x.sum(), "logits": NET(x)},
        r"gives a dict; expected a model .* --output logits, in Python .* lambda x: model\(x\)\['logits'\]",
    ),
    "a map of features": (lambda x: x, r"gives float32 \[2, 1, 4, 4\] for 2 images; expected"),
    "one number": (
        lambda x: x.flatten(1).sum(1),
        r"gives float32 \[2\] for 2 images.*binary model.*\[0, z\]",
    ),
    "one class": (lambda x: x.flatten(1)[:, :1], r"\[2, 1\] .* 2 classes or more.*binary"),
    "one row": (lambda x: NET(x)[:1], r"gives float32 \[1, 3\] for 2 images"),
    "classes": (lambda x: NET(x).argmax(1, keepdim=True).expand(-1, 3), r"gives int64 \[2, 3\]"),
    "for other images": (
        nn.Linear(5, 3),
        r"failed on images float32 \[2, 1, 4, 4\] on cpu with RuntimeError: ",
    ),
    "an error": (broken, "with KeyError: 'of the model'; expected a model"),
}


@pytest.mark.parametrize(("model", "message"), BAD_MODELS.values(), ids=BAD_MODELS.keys())
def test_bad_models(model: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_model(model, X, IMAGES)


def test_an_error_of_ours_is_passed_on() -> None:
    def damaged(x: Tensor) -> Tensor:
        raise CheckpointError("mine")

    with pytest.raises(CheckpointError, match=re.compile("^mine$")):
        check_model(damaged, X, IMAGES)


@pytest.mark.parametrize("eps", [-0.1, float("nan"), float("inf"), 1.5])
def test_a_bad_radius_is_refused_where_the_threat_is_made(eps: float) -> None:
    with pytest.raises(UsageError, match=r"eps must be between 0 and 1"):
        Linf(eps)


def test_a_model_that_changes_its_images_is_refused() -> None:
    def in_place(x: Tensor) -> Tensor:
        pixels = x.detach().numpy()
        pixels[:] = pixels.round()
        return NET(torch.from_numpy(pixels))  # type: ignore[no-any-return]

    kept = X.clone()
    with pytest.raises(UsageError, match="must not change its input in place"):
        check_model(in_place, X, IMAGES)
    assert torch.equal(X, kept)


def test_the_hint_for_one_logit_works() -> None:
    one = nn.Sequential(nn.Flatten(), nn.Linear(16, 1))

    def two(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(one(x).reshape(-1, 1), (1, 0))

    check_model(two, X, Images(X, Y % 2, 2))
    assert torch.equal(two(X).argmax(1), (one(X)[:, 0] > 0).long())
