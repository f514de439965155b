"""The Square attack (Andriushchenko et al. 2020): random search with square patches, from answers alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from atlas.attacks.attack import Attack, Model, NewAttempts, State, Step
from atlas.errors import UsageError
from atlas.objectives import ATTACK_OBJECTIVES
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The last steps before the share of the image that a square covers is halved."""
LEAST = 1e-12  # added to norms by which is divided


@dataclass(frozen=True)
class SquareState(State):
    """Lanes of the search; `x_adv` is the next candidate."""

    x_best: Tensor  # the candidate with the highest loss so far
    loss_best: Tensor  # its loss, [B]
    key: Tensor  # the lanes' random streams, int64 [B]


@dataclass(frozen=True)
class Square(Attack[SquareState]):
    """Change a square of the best image so far and keep the change if the loss rises, `queries` times.

    L-inf: the start is vertical stripes, each column of each channel at x + eps or x - eps. A candidate moves
    a square of the best image by 2 eps, a sign for each channel, cut to ball and box.
    L2: the start is a grid of bumps. A candidate moves the energy of one window into a bump in another.

    A square covers the share `p` of the image, halved after 10, 50, 200, 500, 1000, 2000, 4000, 6000 and
    8000 steps whatever `queries` is, as in AutoAttack; the first publication stretches this to its budget.
    Each example draws its own squares, as in that publication; AutoAttack draws one for the whole batch.
    In L-inf they may lie anywhere in the image, as the publication says; both codes spare the last row and
    column, and so cannot move every pixel of it at will.

    The loss is the margin max_{i != y} f_i - f_y, as there, or cross-entropy. The model is asked at
    1 + `queries` points, of which the start is one, and only for its answers.
    """

    queries: int = 5000
    p: float = 0.8
    restarts: int = 1
    loss: Literal["margin", "ce"] = "margin"
    white_box: ClassVar[bool] = False
    needs_precision: ClassVar[bool] = True
    threats: ClassVar[tuple[type[Threat], ...]] = (Linf, L2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.p <= 1:
            raise UsageError(f"p must be a share of the image, > 0 and <= 1, got {self.p}")

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.queries

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> SquareState:
        x = fresh.x
        if x.dim() != 4:
            raise UsageError(f"Square needs images [C, H, W], got {tuple(x.shape[1:])}")
        first = stripes if isinstance(threat, Linf) else tiles
        x_adv = first(x, threat.eps, fresh.rng.fold("start"))
        loss = x.new_full((len(x),), -torch.inf)
        return SquareState(x, fresh.y, x_adv, fresh.no_steps(), x, loss, fresh.rng.fold("squares").key)

    def advance(self, model: Model, state: SquareState, threat: Threat) -> Step[SquareState]:
        with torch.no_grad():
            logits = model(state.x_adv)
        loss = ATTACK_OBJECTIVES[self.loss](logits, state.y, None).to(state.loss_best.dtype)
        better = loss > state.loss_best
        # lerp is exact for weights 0 and 1, and several times faster than where.
        x_best = torch.lerp(state.x_best, state.x_adv, better.to(state.x.dtype)[:, None, None, None])
        after = replace(
            state,
            x_adv=self._candidate(state, x_best, threat),
            step=state.step + 1,
            x_best=x_best,
            loss_best=torch.where(better, loss, state.loss_best),
        )
        return Step(after, state.x_adv, logits)

    def _candidate(self, state: SquareState, x_best: Tensor, threat: Threat) -> Tensor:
        sides = sides_of(self.p, *x_best.shape[2:], odd=not isinstance(threat, Linf))
        windows = Windows(sides, torch.bucketize(state.step, _halvings(x_best.device)))
        # A step takes its numbers from the lanes' streams where the last one left off.
        count = 5 + x_best.shape[1]
        numbers = state.step[:, None] * count + torch.arange(count, device=x_best.device)
        propose = squares if isinstance(threat, Linf) else moved
        return propose(state.x, x_best, windows, threat.eps, Rng(state.key).elements(numbers))


@lru_cache(maxsize=8)
def sides_of(p: float, height: int, width: int, *, odd: bool) -> tuple[int, ...]:
    """The sides of squares that cover the share p of an image, half of it, a quarter and so on.

    With `odd` they are odd and at least 3, where the image is large enough.
    """
    near = [round((p / 2**k * height * width) ** 0.5) for k in range(len(HALVINGS) + 1)]
    sides = [max(side, 3) + (max(side, 3) + 1) % 2 if odd else max(side, 1) for side in near]
    return tuple(min(side, height, width) for side in sides)


@lru_cache(maxsize=8)
def _halvings(device: torch.device) -> Tensor:
    return torch.tensor(HALVINGS, device=device)


def stripes(x: Tensor, eps: float, rng: Rng) -> Tensor:
    """The start in L-inf: every column of every channel wholly up or wholly down."""
    return (x + signed(eps, rng.bits((x.shape[1], 1, x.shape[3])), x.dtype)).clamp_(0, 1)


def squares(x: Tensor, x_best: Tensor, windows: Windows, eps: float, bits: Tensor) -> Tensor:
    """A candidate in L-inf: x_best with a square at the faces of ball and box.

    A move by 2 eps, cut to ball and box, ends there wherever it began. Of `bits` [B, 5 + C], 64 random ones
    each, the first two are for the place and the last C for the signs.
    """
    mask = windows.mask(windows.places(bits[:, :2], x), x)
    faces = torch.add(x, signed(eps, bits[:, 5:], x.dtype)[..., None, None]).clamp_(0, 1)
    return torch.lerp(x_best, faces, mask, out=faces)


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


@dataclass(frozen=True)
class Windows:
    """Windows of side sides[which], one a lane. What depends on `sides` alone is made once and looked up."""

    sides: tuple[int, ...]
    which: Tensor
    """int64 [B]."""

    def places(self, bits: Tensor, x: Tensor, *, last: bool = True) -> Tensor:
        """First rows and columns, any that fit into the images x [B, C, H, W], of random bits [B, 2].

        Without `last`, not the last of them where there are others.
        """
        places = _places(self.sides, x.shape[2], x.shape[3], x.device)[self.which]
        if not last:
            places = (places - 1).clamp_min_(1)
        return (bits >> 40).bitwise_and_((1 << 24) - 1).mul_(places) >> 24

    def mask(self, places: Tensor, x: Tensor) -> Tensor:
        """1 for the pixels that the windows cover there, else 0, [B, 1, H, W]."""
        height, width = x.shape[2:]
        table = _covers(self.sides, max(height, width), x.dtype, x.device)
        rows, columns = table[self.which[:, None], places].unbind(1)
        return rows[:, None, :height, None] * columns[:, None, None, :width]


@lru_cache(maxsize=8)
def _places(sides: tuple[int, ...], height: int, width: int, device: torch.device) -> Tensor:
    """How many places the rows and the columns of an image have for windows of these sides, int64 [K, 2]."""
    return torch.tensor([[height - side + 1, width - side + 1] for side in sides], device=device)


@lru_cache(maxsize=8)
def _covers(sides: tuple[int, ...], length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[K, length, length]: at (k, p, i) whether a window of side sides[k] that begins at p covers i."""
    ramp = torch.arange(length, device=device)
    after = ramp - ramp[:, None]
    return ((after >= 0) & (after < torch.tensor(sides, device=device)[:, None, None])).to(dtype)


def signed(size: float, bits: Tensor, dtype: torch.dtype) -> Tensor:
    """+size or -size with equal chances, of the first of 64 random bits."""
    return (bits < 0).to(dtype).mul_(2 * size).sub_(size)
