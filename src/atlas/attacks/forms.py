"""Other forms of a model to search with: faster, in lower precision, averaged over its randomness."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas.attacks.frozen import Model
from atlas.errors import UsageError, choose

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""In which precision an attack may search."""


def searched(model: Model, dtype: str) -> Model:
    """The model in the precision `dtype`, to search with: what it finds is checked with the model itself.

    Images come in and logits go out as they do for the model. In bfloat16 it is a copy of the weights,
    channels last, which this arithmetic wants. In float32 it is the model. In both, the gradient of a first
    layer that sees one channel is taken in a faster way: see `FoldedConv`.
    """
    kind = choose("attack dtype", dtype, DTYPES)
    if isinstance(model, nn.Module):
        model = _folded(model)
    if kind == torch.float32:
        return model
    if not isinstance(model, nn.Module):
        raise UsageError(f"{dtype} search needs an nn.Module, got a {type(model).__name__}: take float32")
    try:
        fast = copy.deepcopy(model).to(kind).eval().requires_grad_(False)
    except Exception as error:
        raise UsageError(f"the model cannot be copied for {dtype} ({error}): search in float32") from error
    fast = fast.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack it

    def search(x: Tensor) -> Tensor:
        try:
            logits: Tensor = fast(x.to(kind, memory_format=torch.channels_last))
        except RuntimeError as error:  # not every operation, or constant of an exported graph, can
            raise UsageError(f"the model cannot be asked in {dtype}: {error}; search in float32") from error
        return logits.to(x.dtype)

    return search


def averaged(model: Model, passes: int) -> Model:
    """The mean of the logits over `passes` looks at each image: expectation over transformation (EOT)."""
    if passes < 1:
        raise UsageError(f"eot is {passes}; wanted a whole number from 1")
    return model if passes == 1 else lambda x: torch.stack([model(x) for _ in range(passes)]).mean(0)


def _folded(model: nn.Module) -> nn.Module:
    if not any(map(_slow_to_go_back, model.modules())):
        return model
    try:
        fast = copy.deepcopy(model).eval().requires_grad_(False)
    except Exception:  # a model may hold what cannot be copied, and does without this
        return model
    for module in fast.modules():
        if _slow_to_go_back(module):
            module.__class__ = FoldedConv
    return fast


def _slow_to_go_back(module: nn.Module) -> bool:
    """A convolution on the CPU whose gradient with respect to its one input channel takes a slow path."""
    return (
        type(module) is nn.Conv2d
        and module.in_channels == 1
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and module.weight.device.type == "cpu"
    )


class FoldedConv(nn.Conv2d):
    """A convolution of one channel whose input gradient is a matrix product, folded back to an image.

    The library's own gradient pads the one channel to a full vector and is four times slower, which on MNIST
    is a third of all that an attack does.
    """

    def forward(self, x: Tensor) -> Tensor:
        apply: Any = _Folded.apply
        return apply(x, self.weight, self.bias, self.stride, self.padding)  # type: ignore[no-any-return]


class _Folded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.size, ctx.padding, ctx.stride = x.shape[2:], padding, stride
        return F.conv2d(x, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (weight,) = ctx.saved_tensors
        columns = weight.flatten(1).t() @ gradients[0].to(weight.dtype).flatten(2)  # autocast may lower it
        image = F.fold(columns, ctx.size, weight.shape[2:], 1, ctx.padding, ctx.stride)
        return image, None, None, None, None
