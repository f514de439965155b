"""The loss along a line inside the ball, as in Figures 1 to 3, but of real models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas.attacks import frozen
from atlas.objectives import margin
from atlas.threat import Threat

BOUNDARY = math.log(2)
"""-log 0.5: above it the strongest wrong class has more than half of what the two classes share."""
POINTS = 81
"""On a line, x itself in the middle."""


@dataclass(frozen=True)
class Line:
    """The losses of several models along lines through N images: t [P] in units of eps, losses [M, N, P]."""

    t: Tensor
    losses: Tensor

    @property
    def adversarial(self) -> Tensor:
        """Where a model errs, bool [M, N, P]."""
        return self.losses > BOUNDARY


def directions(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The signs of the margin's gradient at x: where one step of FGSM from x goes, [N, C, H, W].

    The margin, because the gradient of cross-entropy is exactly 0 in floats where a model is sure.
    """
    with frozen(model), torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(margin(model(x), y).sum(), x)
    return gradient.sign()


@torch.no_grad()
def losses_along(
    models: Sequence[nn.Module], x: Tensor, y: Tensor, threat: Threat, along: Sequence[Tensor]
) -> Line:
    """Model m's loss on the points x + t eps d of the pixel box, with d = along[m] [N, C, H, W].

    The loss is the cross-entropy of two classes, the right one and the strongest of the others, as in the
    paper's binary problem: log(1 + exp(max_{i != y} f_i - f_y)). A point is adversarial exactly where it is
    above -log 0.5.
    """
    t = torch.arange(-(POINTS // 2), POINTS // 2 + 1, device=x.device) / (POINTS // 2)
    found = []
    for model, direction in zip(models, along, strict=True):
        with frozen(model):
            points = (threat.project(x + float(step) * threat.eps * direction, x) for step in t)
            found.append(torch.stack([F.softplus(margin(model(point), y)) for point in points], 1))
    return Line(t.cpu(), torch.stack(found).cpu())


def telling_image(line: Line) -> tuple[int, int]:
    """(the image to show, how many are like it).

    The first whose line has adversarial points before, fewer after the local part and none after the global
    part, with some left in between if there is such an image; else the one that loses most of its
    adversarial points from the first model to the last.
    """
    before, local, last = line.adversarial.sum(2)
    falls = (before > local) & (last == 0)
    for wanted in (falls & (local > 0), falls):
        if wanted.any():
            return int(wanted.nonzero()[0, 0]), int(wanted.sum())
    return int((before - last).argmax()), 0
