"""In which arithmetic and order of memory the passes of a training step are made.

Weights and updates are always float32.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from atlas.attacks import Model
from atlas.methods import Method

Precision = Literal["float32", "craft", "bfloat16", "bfloat16-all"]
"""Which passes are in bfloat16: none; those that make adversaries; those of the loss too; also those of its
squared Jacobian, which the others leave in float32.

Losses and the steps and projections of an attack are in float32 in any case.
"""


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Within this block torch uses deterministic algorithms only, if wanted.

    An operation that has none raises an error. On a CPU all that is used here are deterministic anyway.
    """
    if not wanted:
        yield
        return
    cudnn = torch.backends.cudnn
    enabled, benchmark = torch.are_deterministic_algorithms_enabled(), cudnn.benchmark
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when it is first used
    try:
        torch.use_deterministic_algorithms(True)
        cudnn.benchmark = False
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        cudnn.benchmark = benchmark


def lowered(
    precision: Precision, part: Literal["craft", "terms"], device: torch.device
) -> AbstractContextManager[Any]:
    """The arithmetic in which to make this part of a step, to be entered."""
    if precision in ("bfloat16", "bfloat16-all", part):
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def in_bfloat16(model: nn.Module, device: torch.device) -> Model:
    """The model by itself in bfloat16, also where autocast is off, as in the squared Jacobian."""

    def answer(x: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            logits: Tensor = model(x)
        return logits.float()

    return answer


def puts_channels_last(wanted: bool | Literal["auto"], model: nn.Module, method: Method) -> bool:
    """Whether this method trains this model with the channel as the last axis in memory.

    By itself unless the second derivative of BatchNorm is needed, which torch takes slowly in that order.
    """
    if wanted != "auto":
        return wanted
    return not (method.weights.get("jac") and any(isinstance(m, _BatchNorm) for m in model.modules()))


def fastest(device: torch.device) -> dict[str, Any]:
    """The settings of training that were measured to be fast and as accurate on such a device, if any were.

    GPUs were not measured, nor ARM.
    """
    if device.type == "cpu" and knows_bfloat16():
        return {"precision": "bfloat16-all", "channels_last": "auto"}
    return {}


def knows_bfloat16() -> bool:
    """Whether the processor has arithmetic of its own for bfloat16: without it, it is slower than float32."""
    # Not oneDNN's own answer, which is yes also where it would emulate it.
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())
