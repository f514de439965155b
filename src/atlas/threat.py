"""Threat models: the ball of radius eps around an image, cut by the pixel box [0, 1].

A threat draws random starts, takes steepest steps, projects, measures. Attacks that roam the whole box (FAB,
RayS, Square) cut at it themselves.
All tensors are [B, ...] with the example first; eps is in pixel units.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from atlas.config import check_fields
from atlas.errors import DataError, UsageError
from atlas.rng import Rng

TOLERANCE = 1e-6
"""How far beyond the ball or the box rounding may carry an honest point, in pixel units or, above 1, in
units of eps (seen in float32: 3e-8 for L-inf, 2e-7 eps for L2)."""

NEWTON_STEPS = 50  # a cap; about four are taken
LEVELS = 255  # steps of an 8-bit pixel, by which radii are often given


def eps_text(eps: float, digits: int = 4) -> str:
    """eps as it is usually written: 0.3, or 8/255 where it is a number of levels and no short decimal."""
    levels, decimal = eps * LEVELS, f"{eps:.{digits}g}"
    whole = round(levels) >= 1 and abs(levels - round(levels)) < 1e-6
    return f"{round(levels)}/{LEVELS}" if whole and float(decimal) != eps else decimal


def check_pixels(x: Tensor) -> None:
    """Refuse images that are not in [0, 1], up to rounding: eps is in pixel units of that box."""
    low, high = x.detach().aminmax() if x.numel() else (0.0, 0.0)
    if not (low >= -TOLERANCE and high <= 1 + TOLERANCE):
        raise DataError(
            f"images must be finite and in [0, 1], got values from {float(low):.7g} to {float(high):.7g}: "
            "divide by 255 if they are 0 to 255, clip what a resize has overshot (x.clamp(0, 1)), and undo "
            "any normalisation, which is the first layer of the model here"
        )


def check_threat(threat: object) -> None:
    """Refuse what is no threat, such as a bare number."""
    if not isinstance(threat, Threat):
        raise UsageError(f"threat must be {Threat.expected}, got {threat!r}")


def per_example(scalars: Tensor, like: Tensor) -> Tensor:
    """[B] as [B, 1, ..., 1], to go with `like`."""
    return scalars.view(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True, repr=False)
class Threat(ABC):
    """What an adversary may do to an image. `eps` is in pixel units of [0, 1], and may be text: "8/255"."""

    eps: float
    largest_eps: ClassVar[float] = math.inf
    expected: ClassVar[str] = "atlas.Linf(eps) or atlas.L2(eps), such as Linf(8 / 255)"
    """What an error asks for in the place of something else."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not (math.isfinite(self.eps) and 0 <= self.eps <= self.largest_eps):
            expected = (
                f"between 0 and {self.largest_eps:g}" if self.largest_eps < math.inf else ">= 0 and finite"
            )
            raise UsageError(
                f"{type(self).__name__}: eps must be {expected}, in pixel units of [0, 1], such as 8/255, "
                f"got {self.eps:g}"
            )

    def __repr__(self) -> str:
        text = eps_text(self.eps)
        return f"{type(self).__name__}(eps={text if '/' in text else self.eps})"

    def at(self, eps: float) -> Self:
        """The same threat with another radius."""
        return replace(self, eps=eps)

    def random_start(self, x: Tensor, rng: Rng, *, clip: bool = True) -> Tensor:
        """A uniform point of the ball around x; with `clip`, moved into the pixel box."""
        start = x + self.noise(x, rng)
        return start.clamp_(0, 1) if clip else start

    def random_direction(self, x: Tensor, rng: Rng, length: float) -> Tensor:
        """A random difference of this length to the images x, shaped like x."""
        noise = self.noise(x, rng)
        size = self.distance(noise, torch.zeros_like(noise)).clamp_min_(torch.finfo(x.dtype).tiny)
        return noise.mul_(per_example(length / size, x))

    def contains(self, x_adv: Tensor, x: Tensor, tolerance: float = TOLERANCE) -> Tensor:
        """Whether x_adv is in the ball and in the box, bool [B]."""
        flat = x_adv.flatten(1)
        # A NaN is the least and the greatest, and in no box. `all` would be ten times slower.
        in_box = (flat.amin(1) >= -tolerance) & (flat.amax(1) <= 1 + tolerance)
        return in_box & (self.distance(x_adv, x) <= self.eps + tolerance * max(1.0, self.eps))

    @abstractmethod
    def per_pixel(self, x: Tensor) -> float:
        """The change of each pixel of images like x in a perturbation of length eps that is even."""

    @abstractmethod
    def noise(self, x: Tensor, rng: Rng) -> Tensor:
        """A uniform point of the ball around 0, shaped like x."""

    def ascend(self, x_adv: Tensor, gradient: Tensor, size: Tensor | float) -> Tensor:
        """x_adv after a steepest-ascent step of length `size` (a number, or one for each lane)."""
        if isinstance(size, Tensor):
            size = per_example(size, x_adv)
        return x_adv + self.steepest(gradient).mul_(size)

    @abstractmethod
    def steepest(self, gradient: Tensor) -> Tensor:
        """The direction of length 1 along which the loss rises fastest; a new tensor."""

    @abstractmethod
    def project(self, x_adv: Tensor, x: Tensor, eps: Tensor | None = None) -> Tensor:
        """The point of ball and box that is nearest to x_adv; a new tensor.

        `eps` [B] gives each example a radius of its own, in place of the threat's.
        """

    @abstractmethod
    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """||x_adv - x|| in the norm of the threat, [B]."""


class Linf(Threat):
    """Each pixel may change by at most eps: ||x_adv - x||_inf <= eps.

    Args:
        eps: the radius in pixel units of [0, 1], a number or text such as "8/255"; at most 1.

    Raises:
        UsageError: for an eps below 0, above 1 or not finite.

    Example:
        >>> import atlas
        >>> atlas.Linf("8/255")
        Linf(eps=8/255)
    """

    largest_eps = 1.0

    def per_pixel(self, x: Tensor) -> float:
        return self.eps

    def noise(self, x: Tensor, rng: Rng) -> Tensor:
        return rng.uniform(x.shape[1:], -self.eps, self.eps, x.dtype)

    def steepest(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def project(self, x_adv: Tensor, x: Tensor, eps: Tensor | None = None) -> Tensor:
        radius = self.eps if eps is None else per_example(eps, x)
        return torch.clamp(x_adv, x - radius, x + radius).clamp_(0, 1)

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        return (x_adv - x).abs_().flatten(1).amax(1)


class L2(Threat):
    """The Euclidean norm over all pixels and channels is bounded: ||x_adv - x||_2 <= eps.

    Args:
        eps: the radius in pixel units of [0, 1], a number or text such as "128/255".

    Raises:
        UsageError: for an eps below 0 or not finite.

    Example:
        >>> import atlas, torch
        >>> atlas.L2(0.5).distance(torch.zeros(2, 1, 2, 2), torch.ones(2, 1, 2, 2))
        tensor([2., 2.])
    """

    def per_pixel(self, x: Tensor) -> float:
        return self.eps / math.sqrt(x.shape[1:].numel())

    def noise(self, x: Tensor, rng: Rng) -> Tensor:
        size = x.shape[1:].numel()
        direction = rng.fold("direction").sphere(size, x.dtype)
        radius = rng.fold("length").uniform((1,), dtype=x.dtype) ** (1 / size)
        return (direction * radius * self.eps).view_as(x)

    def steepest(self, gradient: Tensor) -> Tensor:
        # A sure or badly scaled model has gradients whose squares leave float32's range, so scale first.
        flat = gradient.flatten(1)
        largest = flat.abs().amax(1, keepdim=True).clamp_min_(torch.finfo(flat.dtype).tiny)
        return torch.nn.functional.normalize(flat / largest).view_as(gradient)

    def project(self, x_adv: Tensor, x: Tensor, eps: Tensor | None = None) -> Tensor:
        """x + t (x_adv - x), cut by the box, with the largest t <= 1 that stays in the ball.

        Shrinking to the ball first and cutting afterwards would lose some of the radius at every step,
        most of all where many pixels are black or white.
        """
        delta = x_adv - x
        edge = delta.sign().add_(1).div_(2)  # of the box, on the side to which each pixel moves
        space = edge.sub_(x).flatten(1).square_()
        radius = self.eps if eps is None else eps[:, None]
        shrink = self._shrink(delta.flatten(1).square(), space, radius**2)
        return delta.mul_(per_example(shrink, x)).add_(x).clamp_(0, 1)

    def _shrink(self, squares: Tensor, space: Tensor, eps2: Tensor | float) -> Tensor:
        """The largest t <= 1 with sum_i min(t^2 squares_i, space_i) <= eps2, [B].

        The sum is concave in t^2, so Newton's method climbs from 0 to the root and never beyond it. A lane
        stands still once it is there, however long the others take.
        """
        unit = torch.finfo(squares.dtype)
        t2 = squares.new_zeros(len(squares), 1)
        for _ in range(NEWTON_STEPS):
            grown = squares * t2
            free = (space - grown).sign_().clamp_min_(0)  # a mask in floats: several times faster here
            slope = free.mul_(squares).sum(1, keepdim=True).clamp_min_(unit.tiny)
            left = eps2 - torch.minimum(grown, space).sum(1, keepdim=True)
            better = (t2 + left / slope).clamp_max_(1)
            moved = better > t2 * (1 + 4 * unit.eps)
            if not moved.any():
                break
            t2 = torch.where(moved, better, t2)
        return t2.sqrt_()

    def distance(self, x_adv: Tensor, x: Tensor) -> Tensor:
        return (x_adv - x).flatten(1).square().sum(1).sqrt()


THREATS: dict[str, type[Threat]] = {"linf": Linf, "l2": L2}
