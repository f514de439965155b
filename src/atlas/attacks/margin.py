"""Attacks that climb a difference of two logits from random starts: Un-T and Multi-T (App. B), and Shrink-T.

Cross-entropy flattens where a model is sure of itself; a difference of logits does not. Any point on the way
that fools counts, the start and the last one too: the lanes engine looks at all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from atlas.attacks.attack import Attack, Model, NewAttempts, State, Step
from atlas.attacks.gradients import input_gradient
from atlas.errors import UsageError
from atlas.objectives import margin, targeted_margin
from atlas.threat import L2, Linf, Threat, per_example

ADAM_STEP = 0.1  # in pixels, as in the implementations that the paper follows
KEEP_MEAN, KEEP_SQUARE = 0.9, 0.999  # how much of its running means Adam keeps (Kingma and Ba 2015)
SHRUNK = 0.5  # the share of the steps after which Shrink-T's ball has the radius eps


@dataclass(frozen=True)
class MarginState(State):
    """Lanes that climb f_i - f_c."""

    target: Tensor | None = None  # the class i, int64 [B]; None: the best wrong class at each step
    mean: Tensor | None = None  # Adam's running mean of the gradients
    square: Tensor | None = None  # Adam's running mean of their squares

    def gradient(self, model: Model) -> tuple[Tensor, Tensor]:
        """The logits at x_adv, and the gradient of f_i - f_c there."""
        if self.target is None:
            return input_gradient(model, self.x_adv, lambda logits: margin(logits, self.y))
        target = self.target
        return input_gradient(model, self.x_adv, lambda logits: targeted_margin(logits, self.y, target))


@dataclass(frozen=True)
class Margin(Attack[MarginState]):
    """What Un-T and Multi-T share: random starts in the ball, steps up f_i - f_c, projected after each.

    "steepest" steps go along the gradient's sign (L-inf) or the gradient itself (L2), and their length is
    `step_size` in pixels, by default eps. "adam" moves each pixel by Adam's rule, with `step_size` as its
    learning rate, by default 0.1; its state is new for each attempt. With `decay` the step falls linearly
    to 0.

    The paper does not state its optimiser. The defaults are what found most: see
    docs/results/evaluation-checks.md.
    """

    steps: int = 50
    restarts: int = 20
    optimizer: Literal["steepest", "adam"] = "steepest"
    step_size: float | None = None
    decay: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size is not None and not 0 < self.step_size < float("inf"):
            raise UsageError(f"step_size must be > 0 and finite, in pixel units, got {self.step_size}")

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> MarginState:
        x_adv = threat.random_start(fresh.x, fresh.rng)
        state = MarginState(fresh.x, fresh.y, x_adv, fresh.no_steps())
        if self.optimizer == "adam":
            state = replace(state, mean=torch.zeros_like(x_adv), square=torch.zeros_like(x_adv))
        return state

    def advance(self, model: Model, state: MarginState, threat: Threat) -> Step[MarginState]:
        x_tried = state.x_adv
        logits_adv, gradient = state.gradient(model)
        length = self._step_length(state, threat)
        if self.optimizer == "adam":
            state, moved = adam(state, gradient, length)
        else:
            moved = threat.ascend(x_tried, gradient, length)
        x_adv = threat.project(moved, state.x)
        return Step(replace(state, x_adv=x_adv, step=state.step + 1), x_tried, logits_adv)

    def _step_length(self, state: MarginState, threat: Threat) -> Tensor:
        size = self.step_size or (ADAM_STEP if self.optimizer == "adam" else threat.eps)
        return size * (1 - self.decay * state.step.to(state.x.dtype) / self.steps)


def adam(state: MarginState, gradient: Tensor, length: Tensor) -> tuple[MarginState, Tensor]:
    """Adam's new means, and x_adv moved up by length m / sqrt(v), both means freed of their bias towards 0.

    The constant that Adam adds to the root is next to nothing here, so that a model with small gradients
    is climbed as well as any other.
    """
    assert state.mean is not None
    assert state.square is not None
    mean = torch.lerp(state.mean, gradient, 1 - KEEP_MEAN)
    square = torch.lerp(state.square, gradient.square(), 1 - KEEP_SQUARE)
    step = (state.step + 1).to(length.dtype)
    length = length * (1 - KEEP_SQUARE**step).sqrt() / (1 - KEEP_MEAN**step)
    root = square.sqrt().add_(torch.finfo(square.dtype).tiny)
    moved = torch.addcdiv(state.x_adv, mean * per_example(length, mean), root)
    return replace(state, mean=mean, square=square), moved


@dataclass(frozen=True)
class Untargeted(Margin):
    """Un-T: climb f_u - f_c with c the true class and u = argmax_{i != c} f_i, chosen anew at each step."""


@dataclass(frozen=True)
class MultiTargeted(Margin):
    """Multi-T: climb f_i - f_c for every wrong class i, each from `restarts` starts.

    Attempt k of an example goes for the wrong class that is k mod (C - 1)-th by its clean logits: first the
    best wrong class, then the next, and when all have had their turn again from another start. The order
    changes no verdict, but the best ones find most, and what is fooled leaves early: see
    docs/results/evaluation-checks.md.
    """

    def attempts(self, num_classes: int) -> int:
        return self.restarts * (num_classes - 1)

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> MarginState:
        return replace(super().start(model, fresh, threat), target=fresh.targets(model)[0])


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
        target, _ = fresh.targets(model, self.targets)
        around = threat.at(min(self.far * threat.eps, threat.largest_eps))
        x_adv = around.random_start(fresh.x, fresh.rng)
        return MarginState(fresh.x, fresh.y, x_adv, fresh.no_steps(), target)

    def advance(self, model: Model, state: MarginState, threat: Threat) -> Step[MarginState]:
        logits, gradient = state.gradient(model)
        part = state.step.to(state.x.dtype) / self.steps
        moved = threat.ascend(state.x_adv, gradient, self._radius(part, threat) * (1 - part))
        x_adv = threat.project(moved, state.x, self._radius(part + 1 / self.steps, threat))
        return Step(replace(state, x_adv=x_adv, step=state.step + 1), state.x_adv, logits)

    def _radius(self, part: Tensor, threat: Threat) -> Tensor:
        """Of the ball after this share of the steps, [B]."""
        more = (1 - part / SHRUNK).clamp_min(0) * (self.far - 1)
        return ((1 + more) * threat.eps).clamp_max(threat.largest_eps)
