"""Images in memory: named data sets, a user's own, the validation split, batches and augmentation."""

from __future__ import annotations

from atlas.data.augment import AUGMENTS, PadCropFlip
from atlas.data.batches import batches, num_batches, split
from atlas.data.convert import as_images
from atlas.data.images import Batch, Images
from atlas.data.load import load

__all__ = [
    "AUGMENTS",
    "Batch",
    "Images",
    "PadCropFlip",
    "as_images",
    "batches",
    "load",
    "num_batches",
    "split",
]
