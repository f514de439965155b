"""What the Square attack tries in L2 (Andriushchenko et al. 2020): bumps that move the change's energy about.

A bump is a square of two halves of opposite signs, one above or beside the other. A half is a pile of
rectangles around its middle, the k-th of which adds 1 / k^2. The change x' - x as a whole is stretched to
norm eps before the box cuts it. Bumps spare the last row and column, as in the authors' code: there they are
wasted where the edges of images say little, as on MNIST.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from atlas.attacks.windows import Windows, signed
from atlas.rng import Rng

LEAST = 1e-12
"""Added to norms by which is divided."""


def tiles(x: Tensor, eps: float, rng: Rng) -> Tensor:
    """The start: a grid of bumps, five to the shorter edge of the image, with random signs and poses."""
    channels, height, width = x.shape[1:]
    side = max(min(height, width) // 5, 1)
    rows, columns = height // side, width // side
    poses = torch.stack([_bump(side), _bump(side).T]).to(x)[
        (rng.fold("pose").bits((rows, columns)) < 0).long()
    ]
    sign = signed(1.0, rng.fold("sign").bits((channels, rows, columns)), x.dtype)
    grid = (poses[:, None] * sign[..., None, None]).transpose(3, 4).flatten(4, 5).flatten(2, 3)
    delta = torch.zeros_like(x)
    top, left = (height - grid.shape[2]) // 2, (width - grid.shape[3]) // 2
    delta[:, :, top : top + grid.shape[2], left : left + grid.shape[3]] = grid
    return _stretched(x, delta, eps)


def moved(x: Tensor, x_best: Tensor, windows: Windows, eps: float, bits: Tensor) -> Tensor:
    """A candidate: the energy of two windows of x_best, and what is unused, goes into a bump in the first.

    In each channel the first window becomes the sum of a bump and of what it held, each at norm 1, scaled to
    that energy; the second becomes 0. Of `bits` [B, 5 + C], 64 random ones each, the first four are for the
    places, then come the pose and the signs.
    """
    first, second = (windows.places(bits[:, i : i + 2], x, last=False) for i in (0, 2))
    delta = x_best - x
    old = delta * windows.mask(first, x)
    rest = delta.sub_(old)
    other = rest * windows.mask(second, x)
    kept = rest.sub_(other)
    norm_old, norm_other, norm_kept = (
        torch.linalg.vector_norm(d.flatten(2), dim=2) for d in (old, other, kept)
    )
    held = norm_old.square() + norm_other.square()
    unused = (eps**2 - (held + norm_kept.square()).sum(1, keepdim=True)).clamp_min(0)
    new = _bumps_at(first, windows, bits[:, 4] < 0, x) * signed(1.0, bits[:, 5:], x.dtype)[..., None, None]
    new.addcmul_(old, (1 / (LEAST + norm_old))[..., None, None])
    scale = (held + unused / x.shape[1]).sqrt() / (LEAST + torch.linalg.vector_norm(new.flatten(2), dim=2))
    return _stretched(x, kept.addcmul_(new, scale[..., None, None]), eps)


def _stretched(x: Tensor, delta: Tensor, eps: float) -> Tensor:
    """x + delta, with delta stretched or shrunk to norm eps, cut by the box."""
    scale = eps / (LEAST + torch.linalg.vector_norm(delta.flatten(1), dim=1))
    return torch.addcmul(x, delta, scale[:, None, None, None]).clamp_(0, 1)


def _bumps_at(places: Tensor, windows: Windows, lying: Tensor, x: Tensor) -> Tensor:
    """Images [B, 1, H, W] that are 0 but for a bump in the window."""
    height, width = x.shape[2:]
    canvases = _canvases(windows.sides, height, width, x.dtype, x.device)
    shifts = canvases.unfold(1, height, 1).unfold(2, width, 1)
    return shifts[2 * windows.which + lying, height - places[:, 0], width - places[:, 1]][:, None]


@lru_cache(maxsize=8)
def _canvases(
    sides: tuple[int, ...], height: int, width: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """A bump of each side and pose at (height, width) of [2 height, 2 width]: its parts show it anywhere."""
    canvases = torch.zeros(2 * len(sides), 2 * height, 2 * width, dtype=dtype, device=device)
    for k, side in enumerate(sides):
        for pose, bump in enumerate((_bump(side), _bump(side).T)):
            canvases[2 * k + pose, height : height + side, width : width + side] = bump
    return canvases


def _bump(side: int) -> Tensor:
    """Two piles of opposite signs, one above the other, [side, side] with norm 1, float64."""
    half = side // 2
    return _unit(torch.cat([_pile(half, side), -_pile(side - half, side)]))


def _pile(height: int, width: int) -> Tensor:
    """Rectangles around the middle, the k-th reaching k - 1 pixels from it and adding 1 / k^2; norm 1."""
    down, across = ((torch.arange(n, device="cpu") - n // 2).abs() for n in (height, width))
    first = torch.maximum(down[:, None], across)  # the first rectangle over a pixel, counted from 0
    steps = torch.arange(1, max(height, width) // 2 + 2, dtype=torch.float64, device="cpu") ** -2
    return _unit(steps.flip(0).cumsum(0).flip(0)[first])


def _unit(values: Tensor) -> Tensor:
    return values.div(torch.linalg.vector_norm(values))
