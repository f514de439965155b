"""Random changes to training images, made on whole batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from atlas.errors import UsageError
from atlas.rng import Rng

Augment = Callable[[Tensor, Rng], Tensor]


@dataclass(frozen=True)
class PadCropFlip:
    """Pad by `pad` black pixels on every side, crop back at a random place, mirror half of the images.

    x: uint8 or float [B, C, H, W], and one random stream an example: what happens to an example does not
    depend on the batch that it is in. uint8 is the faster of the two.
    """

    pad: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise UsageError(f"pad: got {self.pad}; wanted 0 or more pixels")

    def __call__(self, x: Tensor, rng: Rng) -> Tensor:
        size, channels, height, width = x.shape
        padded = F.pad(x, (self.pad,) * 4).flatten(2)
        top, left = rng.fold("crop").bits((2,)).remainder_(2 * self.pad + 1).unbind(1)
        rows = top[:, None] + torch.arange(height, device=x.device)
        columns = left[:, None] + torch.arange(width, device=x.device)
        if self.flip:
            mirrored = rng.fold("flip").bits(()).remainder_(2).bool()
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        source = rows[:, :, None] * (width + 2 * self.pad) + columns[:, None, :]
        source = source.view(size, 1, height * width).expand(-1, channels, -1)
        return padded.gather(2, source).view(x.shape)


AUGMENTS: Mapping[str, Augment | None] = {"none": None, "pad-crop-flip": PadCropFlip()}
