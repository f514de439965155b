"""The Square attack (Andriushchenko et al. 2020): random search with square patches, from answers alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from atlas.attacks import bumps
from atlas.attacks.attack import Attack
from atlas.attacks.frozen import Model
from atlas.attacks.state import Fresh, State, Step
from atlas.attacks.windows import Windows, signed
from atlas.config import check_counts
from atlas.errors import UsageError
from atlas.objectives import ATTACK_OBJECTIVES
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The last steps before the share of the image that a square covers is halved."""


@dataclass(frozen=True)
class SquareState(State):
    """Lanes of the search; `x_adv` is the next candidate."""

    x_best: Tensor
    """The candidate with the highest loss so far."""
    loss_best: Tensor
    """Its loss, [B]."""
    key: Tensor
    """The lanes' random streams, int64 [B]."""


@dataclass(frozen=True)
class Square(Attack[SquareState]):
    """Change a square of the best image so far and keep the change if the loss rises, `queries` times.

    L-inf: the start is vertical stripes, each column of each channel at x + eps or x - eps. A candidate moves
    a square of the best image by 2 eps, a sign for each channel, cut to ball and box.
    L2: see `atlas.attacks.bumps`.

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
        check_counts(queries=self.queries, restarts=self.restarts)
        if not 0 < self.p <= 1:
            raise UsageError(f"p must be a share of the image, > 0 and <= 1, got {self.p}")

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.queries

    def attempts(self, num_classes: int) -> int:
        return self.restarts

    def start(self, model: Model, fresh: Fresh, threat: Threat) -> SquareState:
        x = fresh.x
        if x.dim() != 4:
            raise UsageError(f"Square got examples of shape {tuple(x.shape[1:])}; wanted images [C, H, W]")
        first = stripes if isinstance(threat, Linf) else bumps.tiles
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
        propose = squares if isinstance(threat, Linf) else bumps.moved
        return propose(state.x, x_best, windows, threat.eps, Rng(state.key).elements(numbers))


@lru_cache(maxsize=8)
def sides_of(p: float, height: int, width: int, *, odd: bool) -> tuple[int, ...]:
    """The sides of squares that cover the share p of an image, half of it, a quarter and so on.

    With `odd` they are odd and at least 3, where the image has room for that.
    """
    near = [round((p / 2**k * height * width) ** 0.5) for k in range(len(HALVINGS) + 1)]
    wanted = [max(side, 3) + (max(side, 3) + 1) % 2 if odd else max(side, 1) for side in near]
    return tuple(min(side, height, width) for side in wanted)


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
