"""Two convolutions and two fully connected layers: the paper's network for MNIST, in two sizes.

The paper says no more than "4-layer CNN"; `cnn` fits its accuracies and times a batch, `cnn-small` is
an order of magnitude cheaper and has published robust weights. Both are plain `nn.Sequential`s, so
weights of the same layers load by position.
"""

from __future__ import annotations

from torch import nn

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
