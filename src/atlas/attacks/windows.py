"""Square windows in images: each lane has its own side and place, and there is no loop over lanes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """Windows of side sides[which], one a lane. What depends on `sides` alone is made once and looked up."""

    sides: tuple[int, ...]
    which: Tensor
    """int64 [B]."""

    def places(self, bits: Tensor, x: Tensor, *, last: bool = True) -> Tensor:
        """First rows and columns, any that the images x [B, C, H, W] have room for, of random bits [B, 2].

        Without `last`, not the last of them where there are others.
        """
        room = _rooms(self.sides, x.shape[2], x.shape[3], x.device)[self.which]
        if not last:
            room = (room - 1).clamp_min_(1)
        return (bits >> 40).bitwise_and_((1 << 24) - 1).mul_(room) >> 24

    def mask(self, places: Tensor, x: Tensor) -> Tensor:
        """1 for the pixels that the windows cover there, else 0, [B, 1, H, W]."""
        height, width = x.shape[2:]
        table = _covers(self.sides, max(height, width), x.dtype, x.device)
        rows, columns = table[self.which[:, None], places].unbind(1)
        return rows[:, None, :height, None] * columns[:, None, None, :width]


@lru_cache(maxsize=8)
def _rooms(sides: tuple[int, ...], height: int, width: int, device: torch.device) -> Tensor:
    """How many places the rows and the columns of an image have for windows of these sides, int64 [K, 2]."""
    return torch.tensor([[height - side + 1, width - side + 1] for side in sides], device=device)


@lru_cache(maxsize=8)
def _covers(sides: tuple[int, ...], length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[K, length, length]: at (k, p, i) whether a window of side sides[k] that begins at p covers i."""
    ramp = torch.arange(length, device=device)
    after = ramp - ramp[:, None]
    return ((after >= 0) & (after < torch.tensor(sides, device=device)[:, None, None])).to(dtype)


def signed(size: float, bits: Tensor, dtype: torch.dtype) -> Tensor:
    """+size or -size with equal chances, of the first of 64 random bits."""
    return (bits < 0).to(dtype).mul_(2 * size).sub_(size)
