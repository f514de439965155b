"""Bad input is refused before anything runs, and the error says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas.errors import AtlasError, CheckpointError, DataError, UsageError
from atlas.evaluation.run_attack import check_inputs
from atlas.threat import Linf

X, Y = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
NET = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def changed(values: Tensor, number: float) -> Tensor:
    values = values.clone()
    values[3] = number
    return values


def test_good_input_is_taken() -> None:
    check_inputs(NET, X, Y, Linf(0.1))
    check_inputs(NET, X[:1], Y[:1], Linf(0.0))
    check_inputs(NET.double(), X.double(), Y, Linf(0.1))
    NET.float()
    check_inputs(lambda x: x.flatten(1), X, Y, Linf(0.1))


BAD_DATA: dict[str, tuple[Any, Any, str]] = {
    "bytes": ((X * 255).to(torch.uint8), Y, r"x must be floats .*got uint8 \[6, 1, 4, 4\]: divide by 255"),
    "0 to 255": (X * 255, Y, r"must be finite and in \[0, 1\], got values from .*: divide by 255"),
    "normalised": (X - 0.5, Y, "undo any normalisation, which is the first layer of the model"),
    "NaN": (changed(X, torch.nan), Y, "values from nan to nan"),
    "infinite": (changed(X, torch.inf), Y, "to inf: divide by 255"),
    "flat": (X.flatten(1), Y, r"x must be \[N, C, H, W\], .*got float32 \[6, 16\]"),
    "empty": (X[:0], Y[:0], "must have at least one image, .*the data set is empty"),
    "an array": (X.numpy(), Y, "x must be a tensor, got a ndarray: as_images converts"),
    "too large a label": (
        X,
        changed(Y, 3),
        r"labels go up to 3 and the model has 3 classes, .* 0 to 2",
    ),
    "labels from one": (X, Y + 1, "the model has 3 classes, .*class 0 has no image: labels go from 1 to 3"),
    "a negative label": (X, changed(Y, -1), r"must be in 0 \.\. 2, .*labels from -1 to 2"),
    "floats as labels": (X, Y.float(), r"y must be integer labels.*got float32 \[6\]"),
    "truth values as labels": (X, Y > 0, r"y must be integer labels.*got bool \[6\]"),
    "short integers": (X, Y.int(), r"y must be int64, got int32 \[6\]"),
    "one-hot labels": (X, nn.functional.one_hot(Y), r"y must be one label per image.*got int64 \[6, 3\]"),
    "too few labels": (X, Y[:5], r"y must have one label per image, got int64 \[5\] for 6 images"),
    "a list": (X, Y.tolist(), "y must be a tensor, got a list"),
}


@pytest.mark.parametrize(("x", "y", "message"), BAD_DATA.values(), ids=BAD_DATA.keys())
def test_bad_images_and_labels(x: Any, y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_inputs(NET, x, y, Linf(0.1))


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
        check_inputs(model, X, Y, Linf(0.1))


def test_an_error_of_ours_is_passed_on() -> None:
    def damaged(x: Tensor) -> Tensor:
        raise CheckpointError("mine")

    with pytest.raises(CheckpointError, match=re.compile("^mine$")):
        check_inputs(damaged, X, Y, Linf(0.1))


@pytest.mark.parametrize("eps", [-0.1, float("nan"), float("inf"), 1.5])
def test_a_bad_radius_is_refused_where_the_threat_is_made(eps: float) -> None:
    with pytest.raises(UsageError, match=r"eps must be between 0 and 1"):
        Linf(eps)


def test_a_number_is_no_threat() -> None:
    with pytest.raises(AtlasError, match=r"threat must be atlas\.Linf\(eps\) .* got 0\.3"):
        check_inputs(NET, X, Y, 0.3)  # type: ignore[arg-type]


def test_the_model_and_the_images_are_as_before() -> None:
    model, x, y = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 3)), X.clone(), Y.clone()
    check_inputs(model, x, y, Linf(0.1))
    assert all(m.training for m in model.modules())
    assert int(model[1].num_batches_tracked) == 0
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


def test_a_model_that_changes_its_images_is_refused() -> None:
    def in_place(x: Tensor) -> Tensor:
        pixels = x.detach().numpy()
        pixels[:] = pixels.round()
        return NET(torch.from_numpy(pixels))  # type: ignore[no-any-return]

    kept = X.clone()
    with pytest.raises(UsageError, match="must not change its input in place"):
        check_inputs(in_place, X, Y, Linf(0.1))
    assert torch.equal(X, kept)


def test_the_hint_for_one_logit_works() -> None:
    one = nn.Sequential(nn.Flatten(), nn.Linear(16, 1))

    def two(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(one(x).reshape(-1, 1), (1, 0))

    check_inputs(two, X, Y % 2, Linf(0.1))
    assert torch.equal(two(X).argmax(1), (one(X)[:, 0] > 0).long())
