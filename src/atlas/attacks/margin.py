"""Un-T and Multi-T (App. B): climb a difference of two logits, from many random starts.

Cross-entropy flattens where a model is sure of itself; a difference of logits does not. Any point on the way
that fools counts, the start and the last one too: the lanes engine looks at all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from atlas.attacks.attack import Attack
from atlas.attacks.engine import NewAttempts, State, Step
from atlas.attacks.gradients import input_gradient
from atlas.attacks.model_variants import Model
from atlas.errors import UsageError
from atlas.objectives import margin, targeted_margin
from atlas.threat import Threat, per_example

ADAM_STEP = 0.1
"""Adam's step in pixels, as in the implementations that the paper follows."""
KEEP_MEAN, KEEP_SQUARE = 0.9, 0.999
"""How much of its running means Adam keeps from step to step (Kingma and Ba 2015)."""


@dataclass(frozen=True)
class MarginState(State):
    """Lanes that climb f_i - f_c."""

    target: Tensor | None = None
    """The class i, int64 [B]; None where it is the best wrong class at each step."""
    mean: Tensor | None = None
    """Adam's running mean of the gradients."""
    square: Tensor | None = None
    """Adam's running mean of their squares."""


@dataclass(frozen=True)
class Margin(Attack[MarginState]):
    """What Un-T and Multi-T share: random starts in the ball, steps up f_i - f_c, projected after each.

    "steepest" steps go along the gradient's sign (L-inf) or the gradient itself (L2), and their length is
    `step_size` in pixels, by default eps. "adam" moves each pixel by Adam's rule, with `step_size` as its
    learning rate, by default 0.1; its state is new for each attempt. With `decay` the step falls linearly
    to 0.

    The paper does not state its optimiser. The defaults are what found most: see docs/attacks.md.
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

    @abstractmethod
    def loss(self, logits_adv: Tensor, state: MarginState) -> Tensor:
        """What is climbed, [B]."""

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> MarginState:
        x_adv = threat.random_start(fresh.x, fresh.rng)
        state = MarginState(fresh.x, fresh.y, x_adv, fresh.no_steps())
        if self.optimizer == "adam":
            state = replace(state, mean=torch.zeros_like(x_adv), square=torch.zeros_like(x_adv))
        return state

    def advance(self, model: Model, state: MarginState, threat: Threat) -> Step[MarginState]:
        x_tried = state.x_adv
        logits_adv, gradient = input_gradient(model, x_tried, lambda logits: self.loss(logits, state))
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

    def loss(self, logits_adv: Tensor, state: MarginState) -> Tensor:
        return margin(logits_adv, state.y)


@dataclass(frozen=True)
class MultiTargeted(Margin):
    """Multi-T: climb f_i - f_c for every wrong class i, each from `restarts` starts.

    Attempt k of an example goes for the wrong class that is k mod (C - 1)-th by its clean logits: first the
    best wrong class, then the next, and when all have had their turn again from another start. The order
    changes no verdict, but the best ones find most (docs/attacks.md), and what is fooled leaves early.
    """

    def attempts(self, num_classes: int) -> int:
        return self.restarts * (num_classes - 1)

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> MarginState:
        wrong = fresh.likeliest_wrong(model)
        target = wrong.gather(1, (fresh.attempt % wrong.shape[1])[:, None])[:, 0]
        return replace(super().start(model, fresh, threat), target=target)

    def loss(self, logits_adv: Tensor, state: MarginState) -> Tensor:
        assert state.target is not None
        return targeted_margin(logits_adv, state.y, state.target)
