"""Normalisation as a layer of the model, so that every eps is in pixel units of [0, 1]."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from atlas.errors import UsageError, choose

Normalization = tuple[Sequence[float], Sequence[float]]
"""(mean, std), one number per channel each, or one for all channels."""
STANDARDS: dict[str, Normalization] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "-1..1": ((0.5,), (0.5,)),
    "0..255": ((0.0,), (1 / 255,)),
}
"""Normalisations by name: of data sets, and the two ranges other than [0, 1] that models are given."""


class Normalize(nn.Module):
    """Per channel, (x - mean) / std: [B, C, H, W] to [B, C, H, W].

    Mean and std are buffers: they move, convert and are saved with the model, and are never trained.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or min(std, default=0) <= 0:
            raise UsageError(
                "normalize needs a mean and a std for each channel, every std above 0, got mean "
                f"{list(mean)} and std {list(std)}"
            )
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32, device="cpu").view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32, device="cpu").view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) / self.std).to(x.dtype)


class _Function(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def normalized(
    model: Callable[[Tensor], Tensor], normalize: str | Normalization, channels: int
) -> nn.Sequential:
    """The model behind a layer that normalises images of [0, 1].

    `normalize` is the name of one of `STANDARDS` or (mean, std); a single number is that of every channel.
    """
    mean, std = choose("normalization", normalize, STANDARDS) if isinstance(normalize, str) else normalize
    if len(mean) == len(std) == 1:
        mean, std = [*mean] * channels, [*std] * channels
    layer = Normalize(mean, std)
    if len(mean) != channels:
        raise UsageError(
            f"normalize has mean {list(mean)} and std {list(std)}, and the images have {channels} channels: "
            "give one number per channel, or one for all"
        )
    net = model if isinstance(model, nn.Module) else _Function(model)
    weight = next(net.parameters(), None)
    if weight is not None and not weight.is_meta:
        layer = layer.to(weight.device)
    return nn.Sequential(OrderedDict(normalize=layer, net=net))
