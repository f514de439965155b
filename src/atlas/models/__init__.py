"""Models by name: `build("wrn-28-8", num_classes=10, shape=(3, 32, 32), seed=0)`.

Every model maps images [B, C, H, W] in [0, 1] to logits [B, num_classes] and can be differentiated twice
with respect to its input, as the Jacobian term needs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from atlas.config import check_arguments
from atlas.errors import UsageError, unknown
from atlas.models.networks import Shape, cnn, cnn_small, preact_resnet18, wrn
from atlas.models.normalize import Normalize, normalized
from atlas.models.user_model import Make, user_model

__all__ = ["MODELS", "Entry", "Normalize", "build", "count_parameters"]


@dataclass(frozen=True)
class Entry:
    """A registered model: what makes it, the smallest height and width it takes, one line about it."""

    make: Make
    smallest: int
    description: str


def _wrn(depth: int, width: int, description: str) -> Entry:
    return Entry(partial(wrn, depth, width), smallest=4, description=description)


MODELS = {
    "cnn": Entry(cnn, 4, "2 conv (32 and 64, 5x5), fc 1024: the paper's network for MNIST"),
    "cnn-small": Entry(cnn_small, 4, "2 conv (16 and 32, 4x4 stride 2), fc 100: quick on a CPU"),
    "preact-resnet18": Entry(preact_resnet18, 8, "pre-activation ResNet-18, 64 to 512 channels"),
    "wrn-10-1": _wrn(10, 1, "the smallest wide residual network; wrn-D-K works for every D = 6n + 4 and K"),
    "wrn-16-2": _wrn(16, 2, "a wide residual network that a CPU can train"),
    "wrn-28-8": _wrn(28, 8, "the paper's network for CIFAR-10 and CIFAR-100"),
}


@check_arguments()
def build(
    name: str,
    num_classes: int = 10,
    shape: Sequence[int] = (1, 28, 28),
    normalize: str | tuple[Sequence[float], Sequence[float]] | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> nn.Module:
    """The model called `name`, in training mode, with weights that are a function of `seed`.

    The global random state is left as it was.

    Args:
        name: One of `MODELS`, ``wrn-D-K``, or ``module.path:factory`` for a custom model.
        num_classes: Number of logits.
        shape: (C, H, W) of an image.
        normalize: (mean, std), one number per channel each, or the name of a standard one such as "imagenet"
            (`atlas.models.normalize.STANDARDS`); it becomes the first layer.
        seed: Of the weights.
        device: "cpu", or "meta" for shapes without memory.

    Returns:
        A module from images [B, C, H, W] in [0, 1] to logits [B, num_classes].

    Raises:
        UsageError: There is no such model, or it cannot be made for these classes and this shape.

    Example:
        >>> model = build("cnn-small", num_classes=10, shape=(1, 28, 28))
    """
    if num_classes < 2:
        raise UsageError(f"num_classes must be >= 2, got {num_classes}")
    if len(shape) != 3 or min(shape) < 1:
        raise UsageError(f"shape must be (channels, height, width), such as (3, 32, 32), got {tuple(shape)}")
    size = (shape[0], shape[1], shape[2])
    # The CPU's own generator, on the CPU, whatever the default device: the same weights everywhere.
    with torch.random.fork_rng(devices=[]), torch.device(device):
        make = user_model(name) if ":" in name else _registered(name, size)
        torch.default_generator.manual_seed(seed)  # after a user's module was imported: that may draw too
        try:
            model = make(num_classes, size)
        except (RuntimeError, MemoryError, OverflowError) as error:  # more weights than there is memory for
            raise UsageError(
                f"model {name!r} cannot be made for {num_classes} classes and shape {size}: {error}"
            ) from error
        return model if normalize is None else normalized(model, normalize, size[0])


def count_parameters(model: nn.Module) -> int:
    """The number of parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _registered(name: str, shape: Shape) -> Make:
    wide = re.fullmatch(r"wrn-(\d{1,3})-(\d{1,3})", name)
    if wide:
        entry = _wrn(int(wide[1]), int(wide[2]), "")
    elif name in MODELS:
        entry = MODELS[name]
    else:
        raise UsageError(f"{unknown('model', name, MODELS)}, wrn-D-K, or module.path:factory")
    if min(shape[1:]) < entry.smallest:
        raise UsageError(
            f"model {name!r} needs images of at least {entry.smallest}x{entry.smallest} pixels, got shape "
            f"{shape} (channels, height, width): enlarge the images or choose another model"
        )
    return entry.make
