"""What every contestant gets, and what they read from our attacks to spend the same budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atlas.attacks import PGD, TargetedAPGD, TargetedFAB
from atlas.data import Images

RESTART_STEP = 0.25
"""In Un-T, the step in units of eps of peers whose steps do not shrink. With 1/30 or 1/10 they find less."""


@dataclass(frozen=True)
class Job:
    """A model that stands still, images in batches, and a radius in L-inf."""

    model: nn.Module
    images: Images
    x: Tensor
    """The images as floats, on the model's device."""
    y: Tensor
    eps: float
    batch_size: int
    seed: int = 0

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(torch.split(self.x, self.batch_size), torch.split(self.y, self.batch_size), strict=True)

    def each(self, attack: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """What the attack makes of one batch after the other."""
        return torch.cat([attack(x, y) for x, y in self.batches()])

    def step_of(self, attack: PGD) -> float:
        """The length of the attack's steps in pixels."""
        return attack.step_size or (attack.relative_step or 2.5 / attack.steps) * self.eps

    def targets_of(self, attack: TargetedAPGD | TargetedFAB) -> int:
        return min(attack.targets, self.images.num_classes - 1)

    @property
    def restart_step(self) -> float:
        return RESTART_STEP * self.eps
