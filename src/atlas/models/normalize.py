"""Normalisation as a layer of the model, so that every eps is in pixel units of [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from atlas.errors import UsageError


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
                f"normalize got mean {list(mean)} and std {list(std)}; "
                "wanted one number a channel in each, every std above 0"
            )
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32, device="cpu").view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32, device="cpu").view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std
