"""A network for images of ImageNet's size, to count the cost of: `atlas.bench.imagenet:wrn_50_2`."""

from __future__ import annotations

from torch import Tensor, nn

Shape = tuple[int, int, int]
DEPTHS = (3, 4, 6, 3)
EXPANSION = 4


def _conv(channels_in: int, channels_out: int, size: int, stride: int = 1) -> list[nn.Module]:
    """A convolution and its BatchNorm."""
    conv = nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)
    return [conv, nn.BatchNorm2d(channels_out)]


class Bottleneck(nn.Module):
    """ReLU of x + 1x1 to 3x3 to 1x1 convolutions; the stride is in the second."""

    def __init__(self, channels_in: int, inner: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_conv(channels_in, inner, 1),
            nn.ReLU(),
            *_conv(inner, inner, 3, stride),
            nn.ReLU(),
            *_conv(inner, channels_out, 1),
        )
        same = channels_in == channels_out and stride == 1
        self.shortcut = None if same else nn.Sequential(*_conv(channels_in, channels_out, 1, stride))
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))
        return out


def resnet_50(num_classes: int, shape: Shape, width: int = 1) -> nn.Sequential:
    """ResNet-50 (He et al. 2016): 25,557,032 weights for 1000 classes; `width` widens its 3x3 layers."""
    layers: list[nn.Module] = [*_conv(shape[0], 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for group, depth in enumerate(DEPTHS):
        base = 64 * 2**group
        for i in range(depth):
            stride = 2 if group > 0 and i == 0 else 1
            layers.append(Bottleneck(before, base * width, base * EXPANSION, stride))
            before = base * EXPANSION
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_classes))


def wrn_50_2(num_classes: int, shape: Shape) -> nn.Sequential:
    """Wide ResNet-50-2 (Zagoruyko and Komodakis 2016): 68,883,240 weights for 1000 classes."""
    return resnet_50(num_classes, shape, width=2)
