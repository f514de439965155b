"""What an attack or a loss is given: images, labels, a threat and a model that fit, or a clear error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from atlas.attacks.frozen import Model, check_autograd, frozen
from atlas.data.images import check_left_alone, describe
from atlas.errors import AtlasError, DataError, UsageError, is_out_of_memory
from atlas.threat import Threat, check_pixels, check_threat

EXPECTED = "expected a model from images [B, C, H, W] in [0, 1] to logits [B, classes]"
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def checked_inputs(x: Tensor, y: Tensor, threat: Threat) -> tuple[Tensor, Tensor]:
    """x, and y as int64, if an attack or a loss can work with them."""
    check_autograd()
    check_threat(threat)
    y = _checked_labels(x, y)
    if not x.is_floating_point():
        raise DataError(f"images must be floats in [0, 1], got {describe(x)}: convert them with x / 255")
    check_pixels(x)
    # Autograd refuses tensors that were made in inference mode, but not copies of them.
    x, y = (tensor.clone() if tensor.is_inference() else tensor for tensor in (x, y))
    return x, y


def _checked_labels(x: object, y: object) -> Tensor:
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        kinds = f"{type(x).__name__} and {type(y).__name__}"
        raise DataError(f"images [B, C, H, W] and labels [B] must be tensors, got {kinds}")
    if y.dtype not in INTEGERS or x.ndim < 2 or y.shape != x.shape[:1]:
        raise DataError(
            f"expected images [B, C, H, W] and integer labels [B], got images {describe(x)} and labels "
            f"{describe(y)}"
        )
    if len(y) and y.amin() < 0:
        raise DataError(f"labels must be >= 0, got labels from {int(y.amin())} to {int(y.amax())}")
    return y.to(torch.int64)


@contextmanager
def explained(model: Model, x: Tensor, y: Tensor) -> Iterator[None]:
    """Where this block fails and it is the model's fault, say how; to look beforehand would cost a pass."""
    try:
        yield
    except AtlasError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        classes = answer(model, x).shape[1]
        if int(y.amax()) >= classes:
            raise DataError(
                f"labels go up to {int(y.amax())} and the model has {classes} classes, expected labels 0 to "
                f"{classes - 1}: is it the model of this data set?"
            ) from None
        raise


def answer(model: Model, x: Tensor) -> Tensor:
    """f(x) [B, C], if that is what the model gives; it is as it was before."""
    if not callable(model):
        raise UsageError(f"the model must be callable, got {model!r}; {EXPECTED}")
    try:
        with frozen(model), torch.no_grad():
            logits: Any = model(given := x.clone())
    except AtlasError:
        raise
    except Exception as error:  # a model can raise anything
        if is_out_of_memory(error):
            raise
        raise UsageError(
            f"the model failed on images {describe(x)} on {x.device} with {type(error).__name__}: {error}; "
            f"{EXPECTED}"
        ) from error
    check_left_alone(given, x)
    if not isinstance(logits, Tensor):
        raise UsageError(
            f"the model gives a {type(logits).__name__}; {EXPECTED}: give a function that picks the logits, "
            "such as lambda x: model(x)[0]"
        )
    if logits.ndim != 2 or len(logits) != len(x) or logits.shape[1] < 2 or not logits.is_floating_point():
        raise UsageError(
            f"the model gives {describe(logits)} for {len(x)} images; {EXPECTED}, 2 classes or more"
        )
    if logits.device != x.device:
        raise UsageError(
            f"the model answers on {logits.device} to images on {x.device}, expected one device: give the "
            "module itself, or bring its answers back, as in lambda x: model(x.cuda()).cpu()"
        )
    return logits
