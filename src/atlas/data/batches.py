"""The split into training and validation images, the batches of an epoch, and augmentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from atlas.config import check_arguments
from atlas.data.images import Batch, Images, to_float
from atlas.errors import DataError, UsageError
from atlas.rng import Rng


@check_arguments()
def split(images: Images, size: int | float, seed: int) -> tuple[Images, Images]:
    """(training, validation) images: `size` of them, at random by seed, are held out for validation.

    `size` is a count, or a share of the set if it is below 1. Both parts keep the order of the set.

    Raises:
        DataError: One of the parts would be empty.

    Example:
        >>> train, validation = split(images, 0.1, seed=0)
    """
    count = round(size * len(images)) if 0 < size < 1 else size
    if not 0 < count < len(images) or count != int(count):
        raise DataError(
            "training.validation.size must be a count, or a share below 1, that leaves at least one image on "
            f"each side, got {size} of {len(images)} images"
        )
    order, count = _shuffled(images, seed, "split"), int(count)
    return images.subset(order[count:].sort().values), images.subset(order[:count].sort().values)


def split_test(images: Images, share: float) -> tuple[Images, Images]:
    """(rest, test): the same share of each class, at random, for a data set without test images.

    It depends on the data set alone, so that all runs on it are tested on the same images.
    """
    order, test = _shuffled(images, 0, "test"), torch.zeros(len(images), dtype=torch.bool, device="cpu")
    for label in sorted({*images.y.tolist()}):
        members = order[images.y[order] == label]
        test[members[: round(share * len(members))]] = True
    if not 0 < int(test.sum()) < len(images):
        raise DataError(f"a share of {share} of {len(images)} images leaves none to test or none to train on")
    return images.subset((~test).nonzero().flatten()), images.subset(test.nonzero().flatten())


def num_batches(n: int, batch_size: int) -> int:
    """How many batches `batches` makes of n images."""
    if batch_size < 1:
        raise UsageError(f"batch size must be >= 1, got {batch_size}")
    full, left = divmod(n, batch_size)
    return full + (left > 1 or full == 0)


@check_arguments()
def batches(
    images: Images,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    augment: Augment | None = None,
    device: torch.device | str = "cpu",
    first: int = 0,
) -> Iterator[Batch]:
    """The batches of one epoch, from number `first` on; those before it cost nothing.

    Their order is a pure function of (seed, epoch), and so is the augmentation of each example, so an
    interrupted epoch resumes exactly. The last batch may be shorter, but a single image left over joins the
    batch before it, because BatchNorm refuses a batch of one.

    Example:
        >>> for ids, x, y in batches(images, 128, seed=0, epoch=0):
        ...     loss = F.cross_entropy(model(x), y)
    """
    count = num_batches(len(images), batch_size)
    if not 0 <= first <= count:
        raise UsageError(f"first batch must be in 0 .. {count}, got {first}")
    order = _shuffled(images, seed, "order", epoch)
    for number in range(first, count):
        stop = len(images) if number == count - 1 else (number + 1) * batch_size
        index = order[number * batch_size : stop]
        ids, y = images.ids[index].to(device), images.y[index].to(device)
        x = images.x[index].to(device)
        if augment is not None:
            x = augment(x, Rng.lanes(seed, ids).fold("augment", epoch))
        yield Batch(ids, to_float(x), y)


def _shuffled(images: Images, seed: int, *purpose: int | str) -> Tensor:
    """A random order of the set: each example draws a key by its id, and the keys are sorted."""
    keys = Rng.lanes(seed, images.ids).fold(*purpose).bits(())
    return keys.argsort(stable=True)


Augment = Callable[[Tensor, Rng], Tensor]


@dataclass(frozen=True)
class PadCropFlip:
    """Pad by `pad` black pixels on every side, crop back at a random place, mirror half of the images.

    x: uint8 or float [B, C, H, W], and one random stream per example: what happens to an example does not
    depend on the batch that it is in. uint8 is the faster of the two.
    """

    pad: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise UsageError(f"pad must be >= 0 pixels, got {self.pad}")

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
