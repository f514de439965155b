"""Shrink-T: climb towards a class in a ball that is too large at first, and shrinks to the threat's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from atlas.attacks.attack import Attack
from atlas.attacks.engine import NewAttempts, Step
from atlas.attacks.gradients import input_gradient
from atlas.attacks.margin import MarginState
from atlas.attacks.model_variants import Model
from atlas.errors import UsageError
from atlas.objectives import targeted_margin
from atlas.threat import L2, Linf, Threat

SHRUNK = 0.5
"""After this share of the steps the ball has the radius eps."""


@dataclass(frozen=True)
class TargetedShrink(Attack[MarginState]):
    """Climb f_t - f_y for the `targets` likeliest wrong classes t, from a random point `far` times eps away.

    Where a model is flat around an image, as adversarial training in L-inf makes it, climbs that begin in the
    ball of an L2 threat stall; a climb that begins outside follows the boundary in. The radius falls linearly
    from `far` eps to eps over the first half of the steps. A step goes along the steepest direction; its
    length is the radius, times a factor that falls from 1 to 0. Only points in the ball count. Croce and Hein
    (2021) shrink the radius of L1 balls in a similar way.

    Attempt k goes for the wrong class that is k-th by its clean logits; after `targets` attempts the first
    one has its turn again, from another point.
    """

    targets: int = 3
    steps: int = 20
    restarts: int = 1
    far: float = 6.0
    threats: ClassVar[tuple[type[Threat], ...]] = (Linf, L2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.far < float("inf"):
            raise UsageError(f"far must be >= 1, in units of eps, and finite, got {self.far}")

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> MarginState:
        likeliest = fresh.likeliest_wrong(model, self.targets)
        target = likeliest.gather(1, (fresh.attempt % likeliest.shape[1])[:, None])[:, 0]
        around = threat.at(min(self.far * threat.eps, threat.largest_eps))
        x_adv = around.random_start(fresh.x, fresh.rng)
        return MarginState(fresh.x, fresh.y, x_adv, fresh.no_steps(), target)

    def advance(self, model: Model, state: MarginState, threat: Threat) -> Step[MarginState]:
        def height(logits: Tensor) -> Tensor:
            assert state.target is not None
            return targeted_margin(logits, state.y, state.target)

        logits, gradient = input_gradient(model, state.x_adv, height)
        part = state.step.to(state.x.dtype) / self.steps
        moved = threat.ascend(state.x_adv, gradient, self._radius(part, threat) * (1 - part))
        x_adv = threat.project(moved, state.x, self._radius(part + 1 / self.steps, threat))
        return Step(replace(state, x_adv=x_adv, step=state.step + 1), state.x_adv, logits)

    def _radius(self, part: Tensor, threat: Threat) -> Tensor:
        """Of the ball after this share of the steps, [B]."""
        more = (1 - part / SHRUNK).clamp_min(0) * (self.far - 1)
        return ((1 + more) * threat.eps).clamp_max(threat.largest_eps)
