"""RayS (Chen and Gu 2020): a search for near adversaries that sees nothing but the class a model answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from atlas.attacks.attack import Attack, Model, NewAttempts, State, Step
from atlas.attacks.gradients import finite
from atlas.attacks.model_variants import frozen
from atlas.config import check_arguments, check_counts
from atlas.rng import Rng
from atlas.threat import Linf, Threat, check_pixels, per_example

WIDTH = 1e-3  # binary search is over once it knows the boundary to this length
ANYWHERE = Linf(1.0)  # the whole pixel box, for a search that no radius ends


@dataclass(frozen=True)
class RayState(State):
    """Lanes on their rays. The point at length d of a ray is x + d ray / ||ray||_2, cut by the box."""

    ray: Tensor  # the best direction so far, +1 or -1 for each entry of x; one block is flipped on trial
    best: Tensor  # the length at which it is known to fool, [B]; infinite until one is known
    searching: Tensor  # whether binary search is under way, bool [B]; else the fast check is due
    low: Tensor  # the longest length at which the search has not fooled, [B]; 0 where there is none
    high: Tensor  # the shortest at which it has, [B]
    begin: Tensor  # the first entry of the flipped block, int64 [B]
    size: Tensor  # the size of the blocks of this level, int64 [B]


@dataclass(frozen=True)
class RayS(Attack[RayState]):
    """The nearest adversary along rays of signs, from the model's classes alone: one query a step.

    From a ray of ones, blocks of entries are flipped: all at once, then halves, quarters and so on, down to
    single entries, which are gone through again until the queries are used up. A flip is tried with one
    query at the best length so far (the fast check). Where that fools, binary search finds a shorter length,
    and the flip stays; else it is undone. Nothing is random. Order and constants are the original's: lengths
    are L2 ones and known to 1e-3, the distance that counts is L-inf after the cut.

    The original runs to its last query and then compares the distance with eps. In the lanes engine an
    example leaves at the first query that fools within eps, and the verdict is the same, because a length is
    only ever given up for a shorter one. The original also ends a binary search that outlasts the queries;
    here the last query is the last.
    """

    queries: int = 40_000
    white_box: ClassVar[bool] = False
    needs_precision: ClassVar[bool] = True
    threats: ClassVar[tuple[type[Threat], ...]] = (Linf,)
    looks_at_last: ClassVar[bool] = False

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.queries

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> RayState:
        x, none = fresh.x, fresh.no_steps()
        zero = torch.zeros_like(none, dtype=x.dtype)
        return RayState(
            *(x, fresh.y, x, none),
            ray=torch.ones_like(x),
            best=zero + torch.inf,
            searching=torch.zeros_like(none, dtype=torch.bool),
            low=zero,
            high=zero,
            begin=none,
            size=torch.full_like(none, x.shape[1:].numel()),
        )

    def advance(self, model: Model, state: RayState, threat: Threat) -> Step[RayState]:
        ray, norm = flipped(state), math.sqrt(state.x.shape[1:].numel())
        length = torch.where(state.searching, (state.low + state.high) / 2, state.best)
        x_tried = torch.addcmul(state.x, ray, per_example(length / norm, ray)).clamp_(0, 1)
        with torch.no_grad():
            logits = model(x_tried)
        # All of the box is within ||ray||_2 of x, so that an infinite length is no more than this.
        state = judged(state, ray, length.clamp_max(norm), logits.argmax(1) != state.y)
        return Step(replace(state, x_adv=x_tried, step=state.step + 1), x_tried, logits)


def flipped(state: RayState) -> Tensor:
    """The ray on trial: the best one with its block flipped."""
    # In floats, because masks are several times slower here: entry i is in the block where |i - centre| is
    # less than half the block's size, and the two never meet.
    flat = state.ray.flatten(1)
    half = state.size.to(flat.dtype)[:, None] / 2
    centre = state.begin[:, None] + half - 0.5
    entry = torch.arange(flat.shape[1], device=flat.device, dtype=flat.dtype)
    return (entry - centre).abs_().sub_(half).sign_().mul_(flat).view_as(state.ray)


def judged(state: RayState, ray: Tensor, length: Tensor, fooled: Tensor) -> RayState:
    """The lanes after an answer at this length of the ray on trial.

    Where the trial is over, the next block has its turn; after the last one, blocks are half as large.
    """
    low = torch.where(state.searching & ~fooled, length, state.low)
    high = torch.where(fooled, length, state.high)
    searching = torch.where(state.searching, high - low > WIDTH, fooled)
    kept = (state.searching & ~searching & (high < state.best)).nonzero()[:, 0]
    end = state.begin + state.size
    last = end >= state.x.shape[1:].numel()
    return replace(
        state,
        ray=state.ray.index_copy(0, kept, ray[kept]) if len(kept) else state.ray,
        best=state.best.index_copy(0, kept, high[kept]),
        searching=searching,
        low=low.mul_(searching),
        high=high,
        begin=torch.where(searching, state.begin, end.masked_fill(last, 0)),
        size=torch.where(last & ~searching, (state.size + 1) // 2, state.size),
    )


@check_arguments()
def distance_curve(
    model: Model, x: Tensor, y: Tensor, at: Sequence[int] = (100, 1000, 10_000), batch_size: int = 256
) -> Tensor:
    """The least L-inf distance at which RayS has fooled each of x [N, ...] after so many queries.

    Distances are [N, len(at)]: 0 where the clean image is wrong, infinite until one is found. No radius ends
    the search.
    """
    check_counts(**{f"at[{i}]": queries for i, queries in enumerate(at)})
    check_pixels(x)
    with frozen(model):
        parts = zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True)
        return torch.cat([_curve(model, *part, at) for part in parts])


def _curve(model: Model, x: Tensor, y: Tensor, at: Sequence[int]) -> Tensor:
    attack, columns = RayS(max(at)), dict[int, Tensor]()
    with torch.no_grad():
        right = finite(model(x)).argmax(1) == y
    nearest = torch.zeros_like(right, dtype=x.dtype).masked_fill_(right, torch.inf)
    fresh = NewAttempts(x, y, Rng.batch(len(x), device=x.device), torch.zeros_like(y))
    state = attack.start(model, fresh, ANYWHERE)
    for query in range(1, attack.steps + 1):
        state, x_tried, logits = attack.advance(model, state, ANYWHERE)
        fooled = (finite(logits).argmax(1) != y).nonzero()[:, 0]
        distance = ANYWHERE.distance(x_tried[fooled], x[fooled])
        nearest[fooled] = torch.minimum(nearest[fooled], distance)
        if query in at:
            columns[query] = nearest.clone()
    return torch.stack([columns[queries] for queries in at], 1)
