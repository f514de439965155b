"""Projected gradient descent (Madry et al. 2018) and its one-step form, FGSM from a random start."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from atlas.attacks.attack import Model, NewAttempts, State, Step, TrainingAttack
from atlas.attacks.gradients import input_gradient
from atlas.errors import UsageError, choose
from atlas.objectives import ATTACK_OBJECTIVES
from atlas.rng import Rng
from atlas.threat import Threat, per_example

GAUSSIAN_START = 0.001
"""TRADES starts at x + 0.001 N(0, 1): at x itself the gradient of its KL objective is exactly 0."""
LONG = 100  # from so many steps on, climbs are watched for going in circles
MARK_EVERY = 32  # the longest circle that is seen


@dataclass(frozen=True)
class ClimbState(State):
    """Lanes of a climb."""

    logits: Tensor | None = None  # f(x), where the objective needs it
    mark: Tensor | None = None
    """Where a lane was after the last number of steps that `MARK_EVERY` divides, if it is watched."""
    end: Tensor | None = None  # after how many steps a lane that is watched is done, int64 [B]


@dataclass(frozen=True)
class PGD(TrainingAttack[ClimbState]):
    """x' <- project(x' + step * steepest direction of the objective), `steps` times.

    The step is `step_size` in pixels, or `relative_step` in units of eps (which follows a growing eps),
    or, with neither, 2.5 eps / steps. With `decay` it falls linearly to 0 over the steps.

    `clip_start=False` takes the first gradient at a start that may lie outside the pixel box, as the
    original one-step training on MNIST does (Wong et al. 2020); later points are always in the box.

    Steps of a fixed length often end in a circle: a point that was there before comes again, to the last bit,
    and with it all that followed. Nothing new is found from then on, so in a long search such a lane runs
    only to the point at which all steps would have ended. The outcome is the same.
    """

    steps: int = 20
    step_size: float | None = None
    relative_step: float | None = None
    restarts: int = 1
    objective: str | None = None
    """A name of `ATTACK_OBJECTIVES`; None for that of the method that trains on the attack, else "ce"."""
    start_at: Literal["uniform", "gaussian", "clean"] = "uniform"
    clip_start: bool = True
    decay: bool = False
    total_step: ClassVar[float] = 2.5  # of all steps, in units of eps, unless a step length is given

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("objective", self.climbs, ATTACK_OBJECTIVES)
        if self.start_at == "clean" and self.climbs == "kl":
            raise UsageError(
                "KL has no gradient at x itself: start at 'uniform' or 'gaussian', not at 'clean'"
            )
        if self.step_size is not None and self.relative_step is not None:
            raise UsageError("step_size (in pixels) and relative_step (in units of eps) exclude each other")
        for name in ("step_size", "relative_step"):
            size = getattr(self, name)
            if size is not None and not 0 < size < float("inf"):
                raise UsageError(f"{name} must be > 0 and finite, got {size}")

    @property
    def climbs(self) -> str:
        return self.objective or "ce"

    def with_default_objective(self, objective: str) -> Self:
        return self if self.objective else replace(self, objective=objective)

    def loss(self, logits_adv: Tensor, state: ClimbState) -> Tensor:
        return ATTACK_OBJECTIVES[self.climbs](logits_adv, state.y, state.logits)

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> ClimbState:
        logits = fresh.clean_logits(model) if self.climbs == "kl" else None
        x_adv = self._starting_point(fresh.x, threat, fresh.rng)
        state = ClimbState(fresh.x, fresh.y, x_adv, fresh.no_steps(), logits)
        if self.steps < LONG or self.decay or getattr(model, "random", False):
            return state
        return replace(state, mark=x_adv, end=torch.full_like(fresh.y, self.steps))

    def _starting_point(self, x: Tensor, threat: Threat, rng: Rng) -> Tensor:
        if self.start_at == "clean":
            return x.clone()
        if self.start_at == "gaussian":
            return threat.project(x + GAUSSIAN_START * rng.normal(x.shape[1:], x.dtype), x)
        return threat.random_start(x, rng, clip=self.clip_start)

    def advance(self, model: Model, state: ClimbState, threat: Threat) -> Step[ClimbState]:
        logits_adv, gradient = input_gradient(model, state.x_adv, lambda logits: self.loss(logits, state))
        size: Tensor | float = self._size(threat)
        if self.decay:
            size = size * (1 - state.step / self.steps)
        x_adv = threat.project(threat.ascend(state.x_adv, gradient, size), state.x)
        after = replace(state, x_adv=x_adv, step=state.step + 1)
        return Step(self._watched(after), state.x_adv, logits_adv)

    def _watched(self, state: ClimbState) -> ClimbState:
        """End lanes that are where they were before, and put down marks."""
        if state.mark is None or state.end is None:
            return state
        x_adv, step, mark, end = state.x_adv, state.step, state.mark, state.end
        again = (x_adv == mark).flatten(1).all(1)
        if again.any():
            circle = (step - 1) % MARK_EVERY + 1
            end = torch.where(again, step + (self.steps - step) % circle, end)
        due = step % MARK_EVERY == 0
        if due.any():
            mark = torch.where(per_example(due, x_adv), x_adv, mark)
        return replace(state, mark=mark, end=end)

    def done(self, state: ClimbState) -> Tensor:
        return state.step >= (self.steps if state.end is None else state.end)

    def reach(self, threat: Threat) -> float:
        return self._size(threat) * (self.steps + 1) / 2 if self.decay else self._size(threat) * self.steps

    def _size(self, threat: Threat) -> float:
        """Of the first step."""
        return self.step_size or (self.relative_step or self.total_step / self.steps) * threat.eps


@dataclass(frozen=True)
class FGSM(PGD):
    """One step of 1.25 eps from a uniform start in the ball, projected (Sec. 4 and App. B)."""

    steps: int = field(default=1, init=False)
    total_step: ClassVar[float] = 1.25
