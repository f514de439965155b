"""Other forms of a model for an attack to work on: in lower precision, or averaged over its randomness."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from atlas.attacks.frozen import Model
from atlas.errors import UsageError, choose

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""In which precision an attack may search."""


def searched(model: Model, dtype: str) -> Model:
    """The model in the precision `dtype`, to search with: what it finds is checked with the model itself.

    A copy of the weights in bfloat16, channels last, which this kind of arithmetic wants; images come in and
    logits go out as they do for the model.
    """
    kind = choose("attack dtype", dtype, DTYPES)
    if kind == torch.float32:
        return model
    if not isinstance(model, nn.Module):
        raise UsageError(f"{dtype} search needs an nn.Module, got a {type(model).__name__}: take float32")
    fast = copy.deepcopy(model).to(kind, memory_format=torch.channels_last).eval().requires_grad_(False)

    def search(x: Tensor) -> Tensor:
        return fast(x.to(kind, memory_format=torch.channels_last)).to(x.dtype)  # type: ignore[no-any-return]

    return search


def averaged(model: Model, passes: int) -> Model:
    """The mean of the logits over `passes` looks at each image: expectation over transformation (EOT)."""
    if passes < 1:
        raise UsageError(f"eot is {passes}; wanted a whole number from 1")
    return model if passes == 1 else lambda x: torch.stack([model(x) for _ in range(passes)]).mean(0)
