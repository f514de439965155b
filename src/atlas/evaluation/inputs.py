"""What cannot be evaluated is refused before anything runs, with what is wanted and what to do."""

from __future__ import annotations

import torch
from torch import Tensor

from atlas.attacks import Model
from atlas.attacks.inputs import answer
from atlas.data import Images
from atlas.data.images import describe
from atlas.errors import DataError
from atlas.threat import Threat, check_threat


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
    classes = answer(model, x[:2]).shape[1]
    if classes <= largest:
        raise DataError(
            f"y: labels go up to {largest} and the model has {classes} classes, expected labels 0 to "
            f"{classes - 1}: is it the model of this data set?"
            + (f" Or is there a class too many? {images.empty_classes}" if images.empty_classes else "")
        )
