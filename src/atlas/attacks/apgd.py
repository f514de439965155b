"""Auto-PGD (Croce and Hein 2020): projected ascent with momentum that halves its own step where it stalls."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from atlas.attacks.attack import Attack, Model, NewAttempts, State, Step
from atlas.attacks.gradients import input_gradient
from atlas.objectives import cross_entropy, dlr, targeted_dlr
from atlas.threat import Threat, per_example

FIRST_WINDOW, SHRINKAGE, LEAST_WINDOW = 0.22, 0.03, 0.06
"""In shares of all steps: the first window, how much shorter each next one is, and the shortest."""
ENOUGH_RISES = 0.75
"""A step length is kept if the loss rose in more than this share of the window's steps."""
NEW = 0.75  # the weight of the new direction; the rest is that of the last move


def check_windows(steps: int) -> list[int]:
    """How many steps lie between the checks of the step length: 22, 19, 16, 13, 10, 7, 6, 6 for 100."""
    window, shrinkage, least = (max(int(f * steps), 1) for f in (FIRST_WINDOW, SHRINKAGE, LEAST_WINDOW))
    windows = list[int]()
    while sum(windows) + window <= steps:
        windows.append(window)
        window = max(window - shrinkage, least)
    return windows


@dataclass(frozen=True)
class APGDState(State):
    """Lanes of APGD; what is no image or gradient is [B]."""

    x_last: Tensor  # where the last step was taken from
    x_best: Tensor  # where the loss was highest
    gradient_best: Tensor  # the gradient there
    loss_best: Tensor
    loss_last: Tensor  # the loss at the last point
    loss_checked: Tensor  # loss_best at the last check
    rises: Tensor  # in how many steps since the last check the loss rose, int64
    halved: Tensor  # whether the last check halved the step, bool
    size: Tensor  # the length of the step
    target: Tensor  # the class to reach, int64; the label itself where none is aimed at


class AutoPGD(Attack[APGDState]):
    """What APGD and its targeted form share.

    From a random point on the face of the ball, n times: z = project(x' + s * steepest direction), then
    x' <- project(x' + 0.75 (z - x') + 0.25 (x' - last x')); the first time x' <- z. The step s is 2 eps. At
    the end of each check window it is halved if the loss rose in at most 75% of the window's steps, or if
    it was not halved at the last check and the best loss has not grown since; then the search continues from
    the best point so far, with the gradient found there.

    The loss at the start is not among those that are compared, and the first one after it is compared with
    0, as in the original code. Like that code, we look at n + 1 points, the start and the last included.

    For L-inf the points are those of the original, to rounding. For L2 it shrinks to the ball and then cuts
    at the box, which loses radius where pixels are black or white; we project as `L2` does, and find more.
    """

    restarts: int

    @abstractmethod
    def loss_of(self, logits_adv: Tensor, state: APGDState) -> Tensor:
        """What is climbed, [B]."""

    def aims(self, model: Model, fresh: NewAttempts) -> Tensor:
        """The class that each lane is to reach, int64 [B]."""
        return fresh.y

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> APGDState:
        x, zeros = fresh.x, torch.zeros_like(fresh.y, dtype=fresh.x.dtype)
        x_adv = threat.project(x + threat.random_direction(x, fresh.rng, threat.eps), x)
        return APGDState(
            *(x, fresh.y, x_adv, fresh.no_steps()),
            x_last=x_adv,
            x_best=x_adv,
            gradient_best=torch.zeros_like(x),
            loss_best=zeros - torch.inf,
            loss_last=zeros + torch.inf,  # which the loss at the start does not exceed
            loss_checked=zeros,
            rises=fresh.no_steps(),
            halved=torch.ones_like(fresh.y, dtype=torch.bool),  # the first check looks at rises only
            size=zeros + 2 * threat.eps,
            target=self.aims(model, fresh),
        )

    def advance(self, model: Model, state: APGDState, threat: Threat) -> Step[APGDState]:
        logits, gradient = input_gradient(model, state.x_adv, lambda logits: self.loss_of(logits, state))
        noted = _note(state, self.loss_of(logits, state), gradient)
        checked, back = self._check(noted)
        x_from = state.x_adv
        if back.any():
            x_from = _choose(back, noted.x_best, x_from)
            gradient = _choose(back, noted.gradient_best, gradient)
        x_adv = _move(checked, x_from, gradient, threat)
        return Step(replace(checked, x_adv=x_adv, x_last=x_from, step=state.step + 1), state.x_adv, logits)

    def _check(self, state: APGDState) -> tuple[APGDState, Tensor]:
        """The lanes after a check of those whose window ends here, and which go back to their best point."""
        windows = check_windows(self.steps)
        # The length of the window that ends with the point of a step, else 0.
        lengths = torch.zeros(self.steps + 1, dtype=torch.int64, device="cpu")
        lengths[list(accumulate(windows))] = torch.tensor(windows, device="cpu")
        window = lengths.to(state.step.device)[state.step.clamp(max=self.steps)]
        due = window > 0
        stalled = ~state.halved & (state.loss_checked >= state.loss_best)
        halve = due & (stalled | (state.rises <= ENOUGH_RISES * window))
        checked = replace(
            state,
            loss_checked=torch.where(due, state.loss_best, state.loss_checked),
            rises=state.rises.masked_fill(due, 0),
            halved=torch.where(due, halve, state.halved),
            size=torch.where(halve, state.size / 2, state.size),
        )
        return checked, halve


def _note(state: APGDState, loss: Tensor, gradient: Tensor) -> APGDState:
    """The lanes with what their present points have shown."""
    better = loss > state.loss_best
    return replace(
        state,
        x_best=_choose(better, state.x_adv, state.x_best),
        gradient_best=_choose(better, gradient, state.gradient_best),
        loss_best=torch.where(better, loss, state.loss_best),
        loss_last=loss.masked_fill(state.step == 0, 0),
        rises=state.rises + (loss > state.loss_last),
    )


def _choose(which: Tensor, those: Tensor, others: Tensor) -> Tensor:
    """`those` images in the lanes of the mask `which`, `others` in the rest."""
    # With weights 0 and 1 it is exact, and on a CPU several times faster than a choice by a mask.
    return torch.lerp(others, those, per_example(which.to(those.dtype), those))


def _move(state: APGDState, x_from: Tensor, gradient: Tensor, threat: Threat) -> Tensor:
    """One step from these points, with momentum after the first."""
    z = threat.project(threat.ascend(x_from, gradient, state.size), state.x)
    weight = torch.full_like(state.size, NEW).masked_fill(state.step == 0, 1)
    beyond = torch.lerp(state.x_last, x_from, 2.0)  # as far beyond x_from as x_last lies behind it
    return threat.project(beyond.lerp_(z, per_example(weight, z)), state.x)


@dataclass(frozen=True)
class APGD(AutoPGD):
    """Untargeted APGD on cross-entropy or DLR; on cross-entropy the first stage of AutoAttack."""

    loss: Literal["ce", "dlr"] = "ce"
    steps: int = 100
    restarts: int = 1

    def loss_of(self, logits_adv: Tensor, state: APGDState) -> Tensor:
        return (cross_entropy if self.loss == "ce" else dlr)(logits_adv, state.y)


@dataclass(frozen=True)
class TargetedAPGD(AutoPGD):
    """APGD on the targeted DLR, for each of the likeliest wrong classes; the second stage of AutoAttack.

    Targets are tried in the order of their clean logits, each with all its restarts; with fewer than
    `targets` + 1 classes, all wrong ones. Any misclassification counts, whatever the target was.
    """

    targets: int = 9
    steps: int = 100
    restarts: int = 1

    def aims(self, model: Model, fresh: NewAttempts) -> Tensor:
        first = replace(fresh, attempt=fresh.attempt // self.restarts)
        return first.targets(model, self.targets)[0]

    def loss_of(self, logits_adv: Tensor, state: APGDState) -> Tensor:
        return targeted_dlr(logits_adv, state.y, state.target)
