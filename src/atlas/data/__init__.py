"""Images in memory: named data sets, a user's own, the validation split, batches and augmentation."""

from __future__ import annotations

from atlas.data.batches import AUGMENTS, PadCropFlip, batches, num_batches, split
from atlas.data.images import Batch, Images
from atlas.data.load import load
from atlas.data.user_data import as_images

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
