"""What cannot be evaluated is refused before anything runs, with what is wanted and what to do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atlas.attacks import Model, frozen
from atlas.data import Images
from atlas.data.images import check_left_alone, describe
from atlas.errors import AtlasError, DataError, UsageError, is_out_of_memory
from atlas.threat import Threat, check_threat

WANTED = "wanted a model from images [B, C, H, W] in [0, 1] to logits [B, classes]"


def check_inputs(model: Model, x: Tensor, y: Tensor, threat: Threat) -> None:
    """Refuse images, labels, a model or a threat that no attack can work with.

    x: floats in [0, 1], [N, C, H, W]; y: int64 [N], 0 .. classes - 1. The model is asked at two images, and
    is as it was before. NaN in its outputs is not refused but flagged (`atlas.evaluation.probes`).
    """
    check_threat(threat)
    for name, value in {"x": x, "y": y}.items():
        if not isinstance(value, Tensor):
            raise DataError(
                f"{name}: got a {type(value).__name__}; wanted a tensor: as_images converts arrays"
            )
    if not x.is_floating_point():
        raise DataError(f"x: got {describe(x)}; wanted floats in [0, 1]: divide by 255")
    whole = y.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64) and len(y) > 0
    largest = int(y.max()) if whole else 0
    images = Images(x.detach().to("cpu", torch.float32), y.cpu(), largest + 1)
    classes = _answer(model, x[:2]).shape[1]
    if classes <= largest:
        raise DataError(
            f"y: labels go up to {largest} and the model has {classes} classes, expected labels 0 to "
            f"{classes - 1}: is it the model of this data set?"
            + (f" Or is there a class too many? {images.empty_classes}" if images.empty_classes else "")
        )


def _answer(model: Model, x: Tensor) -> Tensor:
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
            f"{WANTED}"
        ) from error
    check_left_alone(given, x)
    if not isinstance(logits, Tensor):
        raise UsageError(
            f"the model gives a {type(logits).__name__}; {WANTED}: give a function that picks the logits, "
            "such as lambda x: model(x)[0]"
        )
    if logits.ndim != 2 or len(logits) != len(x) or logits.shape[1] < 2 or not logits.is_floating_point():
        raise UsageError(
            f"the model gives {describe(logits)} for {len(x)} images; {WANTED}, 2 classes or more"
        )
    if logits.device != x.device:
        raise UsageError(
            f"the model answers on {logits.device} to images on {x.device}; wanted one device: give the "
            "module itself, or bring its answers back, as in lambda x: model(x.cuda()).cpu()"
        )
    return logits
