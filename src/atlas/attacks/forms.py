"""Other forms of a model to search with: in lower precision, averaged over its randomness."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from atlas.attacks.folded import FoldedConv, slow_convolutions
from atlas.attacks.frozen import Model
from atlas.config import integer
from atlas.errors import UsageError, choose, is_out_of_memory

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""In which precision an attack may search."""


def searched(model: Model, dtype: str) -> Model:
    """The model in the precision `dtype`, to search with: what it finds is checked with the model itself.

    Images come in and logits go out as they do for the model. In bfloat16 it is a copy of the weights,
    channels last, which this arithmetic wants. In float32 it is the model.
    """
    kind = choose("attack dtype", dtype, DTYPES)
    if kind == torch.float32:
        return model
    if not isinstance(model, nn.Module):
        raise UsageError(f"{dtype} search needs an nn.Module, got a {type(model).__name__}: take float32")
    try:
        fast = copy.deepcopy(model).to(kind).eval().requires_grad_(False)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise UsageError(f"the model cannot be copied for {dtype} ({error}): search in float32") from error
    for module in slow_convolutions(fast):
        module.__class__ = FoldedConv
    fast = fast.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it

    def search(x: Tensor) -> Tensor:
        try:
            logits: Tensor = fast(x.to(kind, memory_format=torch.channels_last))
        except RuntimeError as error:  # not every operation, or constant of an exported graph, can
            if is_out_of_memory(error):
                raise
            raise UsageError(f"the model cannot be asked in {dtype}: {error}; search in float32") from error
        return logits.to(x.dtype)

    return search


@contextmanager
def full_float32() -> Iterator[None]:
    """Switch off TF32 and other shortcuts that round float32 products to fewer bits.

    GPUs from Ampere on take them in convolutions unless told otherwise, and their rounding decides about
    images next to the boundary. What was set before is set again afterwards, also after an exception.
    """
    backends: Any = torch.backends  # torch's stubs lack these
    cudnn, mkldnn = backends.cudnn, backends.mkldnn
    switches = [backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


def averaged(model: Model, passes: int) -> Model:
    """The mean of the logits over `passes` looks at each image: expectation over transformation (EOT)."""
    passes = integer(passes, "eot", least=1)
    return model if passes == 1 else Averaged(model, passes)


@dataclass(frozen=True)
class Averaged:
    """The mean of several answers of a model that gives another one each time."""

    model: Model
    passes: int
    random: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        return torch.stack([self.model(x) for _ in range(self.passes)]).mean(0)
