"""The passes that each equation needs, in plain torch with nothing around them.

This is what a training step is held against. Left out is all that is not a pass through the network or
an update of its weights: random starts, moves and projections of the attack, the numbers that are written
down, the look for what is not finite. The points x and x' and the projection v are therefore given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ALPHA, BETA = 1e-5, 0.3
"""The weights of the terms: the paper's for MNIST. No time depends on them."""


@dataclass(frozen=True)
class Passes:
    """How many passes of each kind a step makes. A backward pass to the weights costs two forward ones."""

    forward: int
    input_gradient: int = 0
    """Backward passes that stop at the image: half of a full one."""
    jacobian: int = 0
    """v^T J(x), itself to be differentiated: an input gradient of the logits."""
    backward: int = 1
    """Full backward passes, one for each forward pass that the loss is made of."""
    double_backward: int = 0
    """Backward passes through v^T J(x)."""

    def attacked(self, steps: int) -> Passes:
        """With an attack before it, whose every step is a forward pass and an input gradient."""
        return replace(self, forward=self.forward + steps, input_gradient=self.input_gradient + steps)

    @property
    def cost(self) -> int:
        """The FLOPs bound in forward passes."""
        single = self.forward + self.input_gradient + self.jacobian
        return single + 2 * (self.backward + self.double_backward)


@dataclass(frozen=True)
class Bare:
    """What the passes go through: a model, its optimiser, and fixed points to take them at."""

    model: nn.Module
    weights: Sequence[nn.Parameter]
    """Those that are trained."""
    optimizer: torch.optim.Optimizer
    x: Tensor
    x_adv: Tensor
    y: Tensor
    v: Tensor
    """Unit vectors [B, C]."""

    def stand_still(self) -> None:
        """As while an attack runs."""
        self.model.eval()
        for weight in self.weights:
            weight.requires_grad_(False)

    def learn(self) -> None:
        self.model.train()
        for weight in self.weights:
            weight.requires_grad_(True)

    def climb(self, steps: int, loss: Callable[[Tensor], Tensor]) -> None:
        """Input gradients of loss(f(x')), through a model that stands still."""
        for _ in range(steps):
            x_adv = self.x_adv.detach().requires_grad_()
            torch.autograd.grad(loss(self.model(x_adv)), x_adv)

    def climb_ce(self, steps: int) -> None:
        self.stand_still()
        self.climb(steps, self.ce)

    def climb_kl(self, steps: int) -> None:
        """The gradient of KL(p(x) || p(x')) needs f(x) first."""
        self.stand_still()
        with torch.no_grad():
            logits = self.model(self.x)
        self.climb(steps, partial(kl, logits))

    def ce(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, self.y)

    def with_jacobian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f(x) and alpha ||J(x)||_F^2, by one projection: C ||v^T J||^2."""
        x = x.detach().requires_grad_()
        logits = self.model(x)
        (row,) = torch.autograd.grad(logits, x, self.v, create_graph=True)
        return logits, ALPHA * logits.shape[1] * row.square().sum() / len(x)

    def update(self, loss: Tensor) -> None:
        """The gradient with respect to the weights, and no other, then a step."""
        self.optimizer.zero_grad()
        loss.backward(inputs=self.weights)  # type: ignore[no-untyped-call]
        self.optimizer.step()


def kl(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    """KL(p || q), the mean over the batch."""
    log_p, log_q = F.log_softmax(logits_p, 1), F.log_softmax(logits_q, 1)
    return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)


def natural(bare: Bare, steps: int) -> None:
    """CE(x)."""
    bare.learn()
    bare.update(bare.ce(bare.model(bare.x)))


def jac(bare: Bare, steps: int) -> None:
    """CE(x) + alpha ||J(x)||^2."""
    bare.learn()
    logits, jacobian = bare.with_jacobian(bare.x)
    bare.update(bare.ce(logits) + jacobian)


def adv(bare: Bare, steps: int) -> None:
    """CE(x')."""
    bare.climb_ce(steps)
    bare.learn()
    bare.update(bare.ce(bare.model(bare.x_adv)))


def trades(bare: Bare, steps: int) -> None:
    """CE(x) + beta KL(p(x) || p(x'))."""
    bare.climb_kl(steps)
    bare.learn()
    logits, logits_adv = bare.model(bare.x), bare.model(bare.x_adv)
    bare.update(bare.ce(logits) + BETA * kl(logits, logits_adv))


def atlas(bare: Bare, steps: int) -> None:
    """Eq. (2): CE(x') + alpha ||J(x')||^2 + beta KL(p(x') || p(x))."""
    bare.climb_ce(steps)
    bare.learn()
    logits_adv, jacobian = bare.with_jacobian(bare.x_adv)
    logits = bare.model(bare.x)
    bare.update(bare.ce(logits_adv) + jacobian + BETA * kl(logits_adv, logits))


def atlas_l(bare: Bare, steps: int) -> None:
    """Eq. (18): CE(x') + alpha ||J(x')||^2."""
    bare.climb_ce(steps)
    bare.learn()
    logits_adv, jacobian = bare.with_jacobian(bare.x_adv)
    bare.update(bare.ce(logits_adv) + jacobian)


def atlas_g(bare: Bare, steps: int) -> None:
    """Eq. (19): CE(x') + beta KL(p(x') || p(x))."""
    bare.climb_ce(steps)
    bare.learn()
    logits_adv, logits = bare.model(bare.x_adv), bare.model(bare.x)
    bare.update(bare.ce(logits_adv) + BETA * kl(logits_adv, logits))


def trades_jac(bare: Bare, steps: int) -> None:
    """CE(x) + alpha ||J(x)||^2 + beta KL(p(x) || p(x'))."""
    bare.climb_kl(steps)
    bare.learn()
    logits, jacobian = bare.with_jacobian(bare.x)
    logits_adv = bare.model(bare.x_adv)
    bare.update(bare.ce(logits) + jacobian + BETA * kl(logits, logits_adv))


@dataclass(frozen=True)
class Equation:
    """A method's passes in plain torch, of (what they go through, steps of the attack), and their number."""

    run: Callable[[Bare, int], None]
    passes: Passes
    """Without the steps of the attack."""


EQUATIONS = {
    "natural": Equation(natural, Passes(forward=1)),
    "jac": Equation(jac, Passes(forward=1, jacobian=1, double_backward=1)),
    "adv": Equation(adv, Passes(forward=1)),
    "trades": Equation(trades, Passes(forward=3, backward=2)),
    "atlas": Equation(atlas, Passes(forward=2, jacobian=1, backward=2, double_backward=1)),
    "atlas_l": Equation(atlas_l, Passes(forward=1, jacobian=1, double_backward=1)),
    "atlas_g": Equation(atlas_g, Passes(forward=2, backward=2)),
    "trades_jac": Equation(trades_jac, Passes(forward=3, jacobian=1, backward=2, double_backward=1)),
}
"""By the method's name. A method without an entry is timed all the same, but against nothing."""
