"""Wide residual networks (Zagoruyko and Komodakis 2016); WRN-28-8 is the paper's network for CIFAR."""

from __future__ import annotations

from atlas.errors import UsageError
from atlas.models.cnn import Shape
from atlas.models.preact_resnet import PreActResNet


def wrn(depth: int, width: int, num_classes: int, shape: Shape) -> PreActResNet:
    """WRN-depth-width: three groups of (depth - 4) / 6 blocks with 16, 32 and 64 times `width` channels."""
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1 or width < 1:
        below = max(10, depth - rest)
        raise UsageError(
            f"wrn-{depth}-{width} does not exist: the depth has to be 10, 16, 22, ... (6n + 4; the nearest: "
            f"{below} or {below + 6}) and the width at least 1"
        )
    return PreActResNet(num_classes, shape, 16, (16 * width, 32 * width, 64 * width), blocks)
