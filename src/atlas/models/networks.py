"""The networks: two small CNNs, and residual networks with pre-activation, wide or not (He et al. 2016).

The paper says no more of its network for MNIST than "4-layer CNN": `cnn` fits its accuracies and its times
per batch, `cnn-small` is an order of magnitude cheaper and has published robust weights. Both are plain
`nn.Sequential`s, so weights of the same layers load by position.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from atlas.errors import UsageError

Shape = tuple[int, int, int]


def cnn(num_classes: int, shape: Shape) -> nn.Sequential:
    """Conv 32 and 64 (5x5, each pooled by 2), fc 1024: 3,274,634 weights for MNIST (Madry et al. 2018)."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 1024),
        nn.ReLU(),
        nn.Linear(1024, num_classes),
    )


def cnn_small(num_classes: int, shape: Shape) -> nn.Sequential:
    """Conv 16 and 32 (4x4, stride 2), fc 100: 166,406 weights for MNIST (Wong and Kolter 2018)."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 100),
        nn.ReLU(),
        nn.Linear(100, num_classes),
    )


def _conv(channels_in: int, channels_out: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """x + conv(a(conv(a(x)))) with a = ReLU of BatchNorm.

    Where the number of channels changes, a 1x1 convolution of a(x), not of x, takes the place of x: so do
    the wide residual networks of this field, and their published sizes follow from it.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.act1 = nn.Sequential(nn.BatchNorm2d(channels_in), nn.ReLU())
        self.conv1 = _conv(channels_in, channels_out, 3, stride)
        self.act2 = nn.Sequential(nn.BatchNorm2d(channels_out), nn.ReLU())
        self.conv2 = _conv(channels_out, channels_out, 3)
        same = channels_in == channels_out
        self.shortcut = None if same else _conv(channels_in, channels_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        a = self.act1(x)
        out: Tensor = self.conv2(self.act2(self.conv1(a)))
        return out + (x if self.shortcut is None else self.shortcut(a))


class PreActResNet(nn.Module):
    """A 3x3 stem, groups of `depth` blocks (each group after the first halves the image), mean, linear.

    `widths` are the channels of the groups. Convolutions start as N(0, 2 / fan_out) (He et al. 2015).
    """

    def __init__(self, num_classes: int, shape: Shape, stem: int, widths: Sequence[int], depth: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        before = stem
        for group, width in enumerate(widths):
            for i in range(depth):
                blocks.append(Block(before, width, stride=2 if group > 0 and i == 0 else 1))
                before = width
        self.stem = _conv(shape[0], stem, 3)
        self.blocks = nn.Sequential(*blocks)
        self.act = nn.Sequential(nn.BatchNorm2d(before), nn.ReLU())
        self.fc = nn.Linear(before, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.act(self.blocks(self.stem(x)))
        logits: Tensor = self.fc(features.mean(dim=(2, 3)))
        return logits


def preact_resnet18(num_classes: int, shape: Shape) -> PreActResNet:
    """Four groups of two blocks, 64 to 512 channels: 11,172,170 weights for CIFAR-10."""
    return PreActResNet(num_classes, shape, stem=64, widths=(64, 128, 256, 512), depth=2)


def wrn(depth: int, width: int, num_classes: int, shape: Shape) -> PreActResNet:
    """WRN-depth-width: three groups of (depth - 4) / 6 blocks, 16, 32 and 64 times `width` channels.

    Zagoruyko and Komodakis 2016; WRN-28-8 is the paper's network for CIFAR.
    """
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1 or width < 1:
        below = max(10, depth - rest)
        raise UsageError(
            f"wrn-{depth}-{width} does not exist: the depth must be 6n + 4 (nearest: {below} or {below + 6}) "
            "and the width at least 1"
        )
    return PreActResNet(num_classes, shape, 16, (16 * width, 32 * width, 64 * width), blocks)
