"""A faster way back through a first layer that sees one channel, for models whose weights stand still."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad


def slow_convolutions(model: nn.Module) -> list[nn.Conv2d]:
    """The convolutions of one channel whose input gradient takes a slow path on the CPU."""
    return [module for module in model.modules() if type(module) is nn.Conv2d and _slow_to_go_back(module)]


def _slow_to_go_back(module: nn.Conv2d) -> bool:
    return (
        module.in_channels == 1
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and module.weight.device.type == "cpu"
    )


class FoldedConv(nn.Conv2d):
    """A convolution of one channel whose input gradient is a matrix product, folded back to an image.

    The library's own gradient pads the one channel to a full vector and is several times slower, which on
    MNIST is a good part of all that an attack does. Whoever wants more than that gradient (one of the
    weights, a derivative by `torch.func` or forward mode, an image without a batch) gets the library's.
    """

    def _get_name(self) -> str:
        """As before: a model that stands still is described, and known by that, as ever."""
        return nn.Conv2d.__name__

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or self.weight.requires_grad or _otherwise_derived():
            return super().forward(x)
        apply: Any = _Folded.apply
        return apply(x, self.weight, self.bias, self.stride, self.padding)  # type: ignore[no-any-return]


def _otherwise_derived() -> bool:
    """Whether derivatives are taken in another way than by going back through a graph."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


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
        gradient = gradients[0].to(weight.dtype)  # autocast may lower it
        # Not flatten, which a batch of gradients (`is_grads_batched`) does not know.
        columns = weight.flatten(1).t() @ gradient.reshape(*gradient.shape[:2], -1)
        image = F.fold(columns, ctx.size, weight.shape[2:], 1, ctx.padding, ctx.stride)
        return image, None, None, None, None
