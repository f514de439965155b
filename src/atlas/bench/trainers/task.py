"""What every trainer gets: a network, a batch, a radius, and how many steps its attack has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atlas.bench.passes import ALPHA, BETA

LR, MOMENTUM = 1e-5, 0.9
"""Small enough that the weights stay where they are: no time depends on it."""


@dataclass(frozen=True)
class Task:
    """One batch, on which a step is made again and again. It can be sent to another process."""

    model: nn.Module
    x: Tensor
    y: Tensor
    eps: float
    """In L-inf."""
    steps: int
    """Of the attack; 0 where the method has none."""
    classes: int
    alpha: float = ALPHA
    beta: float = BETA

    @property
    def step_size(self) -> float:
        """Our attacks' own: 1.25 eps for a single step, 2.5 eps / steps for several."""
        return (1.25 if self.steps == 1 else 2.5 / self.steps) * self.eps

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), LR, MOMENTUM)
