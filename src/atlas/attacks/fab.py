"""FAB-T, the targeted fast adaptive boundary attack (Croce and Hein 2020), as AutoAttack runs it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from atlas.attacks.attack import Attack, Model, NewAttempts, State, Step
from atlas.attacks.gradients import input_gradient
from atlas.errors import UsageError
from atlas.objectives import targeted_margin
from atlas.threat import L2, Linf, Threat, per_example

SHORTEST = 1e-8
"""Steps count as at least so long when two of them are weighed, so that 0 / 0 is not met."""
NEWTON_STEPS = 100  # a cap; four to fourteen are taken


@dataclass(frozen=True)
class FABState(State):
    """Lanes on their way to a boundary."""

    target: Tensor  # the class beyond the boundary, int64 [B]


@dataclass(frozen=True)
class TargetedFAB(Attack[FABState]):
    """Walk to the boundary between y and a target class t, and along it to the point nearest to x.

    At the current point x' the boundary, where h = f_t - f_y is 0, is taken for the hyperplane
    h(x') + grad h(x').(z - x') = 0. With d and d_0 the shortest steps to it, within the box, from x' and x,

        x' <- clip((1 - a) (x' + eta d) + a (x + eta d_0)),   a = min(|d| / (|d| + |d_0|), alpha_max),

    and then, if the model is wrong there, x' <- x + beta (x' - x). eta > 1 leads beyond the boundary, a draws
    x' towards x. Attempts take the likeliest wrong classes at x for targets, one after the other, from x;
    with restarts, again from random points at half the radius.

    The points roam the whole box: what counts is a misclassified one, of whatever class, in the ball. A
    step asks the model twice, the first time for a gradient. The original takes the gap to the hyperplane
    as the difference of two large numbers, w.x - b; we take it from h(x') itself.
    """

    targets: int = 9
    steps: int = 100
    restarts: int = 1
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    needs_precision: ClassVar[bool] = True
    threats: ClassVar[tuple[type[Threat], ...]] = (Linf, L2)
    forwards: ClassVar[int] = 2
    looks_at_last: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("alpha_max", "beta"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        if not 1 <= self.eta < float("inf"):
            raise UsageError(f"eta must be >= 1, to reach the boundary, and finite, got {self.eta}")

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> FABState:
        target, restart = fresh.targets(model, self.targets)
        x_adv = fresh.x.clone()
        again = (restart > 0).nonzero()[:, 0]
        if len(again):
            half_way = threat.random_direction(fresh.x[again], fresh.rng[again], threat.eps / 2)
            x_adv[again] = half_way.add_(fresh.x[again]).clamp_(0, 1)
        return FABState(fresh.x, fresh.y, x_adv, fresh.no_steps(), target)

    def advance(self, model: Model, state: FABState, threat: Threat) -> Step[FABState]:
        def height(logits: Tensor) -> Tensor:
            return targeted_margin(logits, state.y, state.target)

        logits, gradient = input_gradient(model, state.x_adv, height)
        x_new = self._move(state, threat, height(logits).to(gradient.dtype), gradient)
        with torch.no_grad():
            logits_new = model(x_new)
        wrong = logits_new.argmax(1) != state.y
        share = x_new.new_ones(len(x_new)).masked_fill_(wrong, self.beta)
        x_adv = torch.lerp(state.x, x_new, per_example(share, x_new))
        return Step(replace(state, x_adv=x_adv, step=state.step + 1), x_new, logits_new)

    def _move(self, state: FABState, threat: Threat, height: Tensor, gradient: Tensor) -> Tensor:
        """The next point, by the hyperplane height + gradient.(z - x') = 0."""
        points = torch.stack([state.x_adv, state.x], 1).flatten(2)
        w = gradient.flatten(1)
        rise = torch.bmm(points[:, :1] - points[:, 1:], w[:, None].transpose(1, 2)).view(-1)  # w.(x' - x)
        d, lengths = shortest_steps(threat, points, w, torch.stack([-height, rise - height], 1))
        lengths = lengths.clamp_min(SHORTEST)
        a = (lengths[:, :1] / lengths.sum(1, keepdim=True)).clamp_max(self.alpha_max)
        ends = points.add_(d, alpha=self.eta)
        return torch.lerp(ends[:, 0], ends[:, 1], a).clamp_(0, 1).view_as(state.x)


def shortest_steps(threat: Threat, points: Tensor, w: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    """The shortest d with w.d = gap that keep the points in the box, and how long they are.

    Where the box is too small for that, d leads to its corner that comes nearest. Pixels that w does not see
    stay. Points [B, K, N], of which K share a hyperplane, w [B, N] and gap [B, K] give d [B, K, N] and its
    length [B, K] in the norm of the threat, L-inf or L2.
    """
    direction = w.sign()[:, None] * gap.sign()[..., None]
    space = direction.clamp_min(0).sub_(points).abs_()  # to the edge towards which a pixel moves
    if isinstance(threat, Linf):
        d = direction.mul_(_passed(w.abs(), space, gap.abs()))
        return d, d.abs().amax(2)
    # The squares of very small or large gradients would leave float32's range, so scale first.
    tiny = torch.finfo(w.dtype).tiny
    scale = w.abs().amax(1, keepdim=True).clamp_min_(tiny)
    speed = (w / scale).abs_()
    time = _passed(speed.square(), space.div_(speed.clamp_min(tiny)[:, None]), (gap / scale).abs_())
    d = direction.mul_(time).mul_(speed[:, None])
    return d, torch.linalg.vector_norm(d, dim=2)


def _passed(weights: Tensor, stops: Tensor, total: Tensor) -> Tensor:
    """min(mu, stops) [B, K, N] with the least mu such that sum_i weights_i min(mu, stops_i) = total [B, K].

    The slope of the sum falls wherever mu passes a stop that has weight. Where it has not changed, the last
    step was along the right piece and mu is found.
    """
    column = weights[:, None].transpose(1, 2)  # bmm is several times slower with a contiguous one
    left = total = total[..., None]
    # Where all of it is out of reach, mu would climb past every stop.
    mu = torch.zeros_like(total).masked_fill_(torch.bmm(stops, column) <= total, torch.inf)
    last_slope = torch.full_like(total, torch.inf)
    free, passed = torch.empty_like(stops), torch.empty_like(stops)
    for _ in range(NEWTON_STEPS):
        # A mask in floats, written at once, costs a fraction of a bool one.
        slope = torch.bmm(torch.gt(stops, mu, out=free), column)
        found = slope == last_slope
        if found.all():
            break
        step = (left / slope.clamp_min(torch.finfo(mu.dtype).tiny)).clamp_min_(0)
        mu, last_slope = torch.where(found, mu, mu + step), slope
        left = total - torch.bmm(torch.minimum(stops, mu, out=passed), column)
    return passed
