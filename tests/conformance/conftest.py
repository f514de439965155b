"""A small model that counts what it is asked, for the tables of promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Tick(torch.autograd.Function):
    """The identity; whenever a gradient passes through it, its model counts one backward pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, model: Counted) -> Tensor:
        ctx.model = model
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.model.backwards += 1
        return gradients[0], None


class Counted(nn.Module):
    """A float64 convolution and a linear layer; with `norm`, BatchNorm and dropout between them."""

    def __init__(self, shape: tuple[int, int, int], classes: int, norm: bool = False, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        channels, height, width = shape
        middle: list[nn.Module] = [nn.BatchNorm2d(4), nn.Dropout(0.2)] if norm else []
        size = 4 * ((height - 3) // 2 + 1) * ((width - 3) // 2 + 1)
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 4, 3, stride=2), *middle, nn.ReLU(), nn.Flatten(), nn.Linear(size, classes)
        ).double()
        self.forwards = self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        return Tick.apply(self.layers(x), self)  # type: ignore[no-any-return]

    def passes(self) -> tuple[int, int]:
        """(forward, backward) passes so far."""
        return self.forwards, self.backwards

    def snapshot(self) -> list[object]:
        """All that must be the same after an attack, as plain values."""
        return [
            [m.training for m in self.modules()],
            [p.requires_grad for p in self.parameters()],
            [p.grad for p in self.parameters()],
            [v.tolist() for v in self.state_dict().values()],
        ]


@pytest.fixture(scope="session")
def counted() -> Callable[..., Counted]:
    """counted(shape, classes, norm=False, seed=0) gives a model."""
    return Counted
