"""In which arithmetic the passes of a training step are made; weights and updates are always float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

Precision = Literal["float32", "craft", "bfloat16"]
"""Which passes are in bfloat16: none; those that make adversaries; those of the loss too.

The squared Jacobian is in float32 in any case, and so are the steps and projections of an attack.
"""


def lowered(
    precision: Precision, part: Literal["craft", "terms"], device: torch.device
) -> AbstractContextManager[Any]:
    """The arithmetic in which to make this part of a step, to be entered."""
    if precision == "bfloat16" or precision == part:
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def fastest(device: torch.device) -> dict[str, Any]:
    """The settings of training that were measured to be fast and as accurate on such a device, if any were.

    GPUs were not measured, nor ARM.
    """
    if device.type == "cpu" and knows_bfloat16():
        return {"precision": "bfloat16", "channels_last": True}
    return {}


def knows_bfloat16() -> bool:
    """Whether the processor has arithmetic of its own for bfloat16: without it, it is slower than float32."""
    # Not oneDNN's own answer, which is yes also where it would emulate it.
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())
