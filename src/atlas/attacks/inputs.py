"""What an attack or a loss is given: images, labels, a threat and a model that fit, or a clear error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from atlas.attacks.model_variants import Model, check_autograd, frozen
from atlas.data.images import check_left_alone, describe
from atlas.errors import AtlasError, DataError, UsageError, is_out_of_memory
from atlas.models.user_model import weight_dtype
from atlas.threat import Threat, check_pixels, check_threat

EXPECTED = "expected a model from images [B, C, H, W] in [0, 1] to logits [B, classes]"
ONE_LOGIT = (
    ". If it is the one logit z of a binary model (before the sigmoid), give the logits [0, z]: in Python "
    "lambda x: torch.nn.functional.pad(model(x).reshape(-1, 1), (1, 0)); on the command line a "
    "module.path:factory that returns an nn.Module whose forward does the same"
)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def checked_inputs(x: Tensor, y: Tensor, threat: Threat) -> tuple[Tensor, Tensor]:
    """x, and y as int64, if an attack or a loss can work with them."""
    check_autograd()
    check_threat(threat)
    given: tuple[object, object] = x, y
    if not all(isinstance(value, Tensor) for value in given):
        kinds = " and ".join(type(value).__name__ for value in given)
        raise DataError(f"images [B, C, H, W] and labels [B] must be tensors, got {kinds}")
    if y.dtype not in INTEGERS or x.ndim < 2 or y.shape != x.shape[:1]:
        raise DataError(
            f"expected images [B, C, H, W] and integer labels [B], got images {describe(x)} and labels "
            f"{describe(y)}"
        )
    if len(y) and y.amin() < 0:
        raise DataError(f"labels must be >= 0, got labels from {int(y.amin())} to {int(y.amax())}")
    if not x.is_floating_point():
        raise DataError(f"images must be floats in [0, 1], got {describe(x)}: convert them with x / 255")
    check_pixels(x)
    return x, y.to(torch.int64)


def check_classes(y: Tensor, classes: int) -> None:
    """Refuse labels that are none of the model's classes."""
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise DataError(
            f"labels go from {int(y.min())} to {int(y.max())} and the model has {classes} classes, expected "
            f"labels 0 to {classes - 1}: is it the model of this data set?"
        )


@contextmanager
def explained(model: Model, x: Tensor, y: Tensor) -> Iterator[None]:
    """Where this block fails and it is the model's fault, say how; to look beforehand would cost a pass."""
    try:
        yield
    except AtlasError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            check_classes(y, answer(model, x).shape[1])
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
        kind, hint = weight_dtype(model), ""
        if kind != x.dtype:
            hint = (
                f": its weights are {kind}, so give lambda x: model(x.to({kind})).float(), or model.float()"
            )
        raise UsageError(
            f"the model failed on images {describe(x)} on {x.device} with {type(error).__name__}: {error}; "
            f"{EXPECTED}{hint}"
        ) from error
    check_left_alone(given, x)
    if not isinstance(logits, Tensor):
        key = _logits_in(logits, len(x))
        raise UsageError(
            f"the model gives a {type(logits).__name__}; {EXPECTED}: pick the logits, on the command line "
            f"with --output {key}, in Python with a function such as lambda x: model(x)[{key!r}]"
        )
    if logits.ndim != 2 or len(logits) != len(x) or logits.shape[1] < 2 or not logits.is_floating_point():
        raise UsageError(
            f"the model gives {describe(logits)} for {len(x)} images; {EXPECTED}, 2 classes or more"
            + (ONE_LOGIT if logits.numel() == len(x) and logits.is_floating_point() else "")
        )
    return logits


def _logits_in(outputs: Any, n: int) -> int | str:
    """Where among several outputs the logits [n, classes] seem to be: a place or a key."""
    entries: Any = outputs.items() if isinstance(outputs, Mapping) else ()
    if isinstance(outputs, Sequence):
        entries = enumerate(outputs)
    for key, value in entries:
        if isinstance(key, int | str) and isinstance(value, Tensor) and value.ndim == 2 and len(value) == n:
            return key
    return 0
