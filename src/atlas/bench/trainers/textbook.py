"""Each method as one writes it in a notebook: float32, and one line after the other.

Nothing is clever here, but nothing is wasteful either: the attack asks for the gradient of the images only
(`torch.autograd.grad`; many a published loop calls `backward()` and throws the weights' gradients away).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from atlas.bench.trainers.task import Task

Craft = Callable[[], Tensor]
Loss = Callable[[Task, Tensor, Tensor], Tensor]
"""Of the task, x_adv, and unit vectors v [B, C] for a Jacobian term: a scalar."""

SMALL = 0.001
"""How far from x TRADES starts where it takes several steps."""


def loop(task: Task, craft: Craft, loss: Loss) -> Callable[[], None]:
    """A step of plain training: adversaries from a model in eval mode, then an update in training mode."""
    optimizer = task.optimizer()

    def step() -> None:
        task.model.eval()
        x_adv = craft()
        task.model.train()
        optimizer.zero_grad()
        loss(task, x_adv, directions(task)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def directions(task: Task) -> Tensor:
    """One v for each image, uniform on the unit sphere."""
    return F.normalize(torch.randn(len(task.x), task.classes).to(task.x))


# --- adversaries ---


def uniform_start(task: Task) -> Tensor:
    return (task.x + torch.empty_like(task.x).uniform_(-task.eps, task.eps)).clamp(0, 1)


def trades_start(task: Task) -> Tensor:
    """In the whole ball for a single step, close to x for several."""
    if task.steps == 1:
        return uniform_start(task)
    return (task.x + SMALL * torch.randn_like(task.x)).clamp(0, 1)


def climb_ce(task: Task, x_adv: Tensor) -> Tensor:
    return _climb(task, x_adv, lambda logits: F.cross_entropy(logits, task.y))


def climb_kl(task: Task, x_adv: Tensor) -> Tensor:
    with torch.no_grad():
        p = F.softmax(task.model(task.x), 1)
    return _climb(task, x_adv, lambda logits: F.kl_div(F.log_softmax(logits, 1), p, reduction="batchmean"))


def _climb(task: Task, x_adv: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    for _ in range(task.steps):
        x_adv.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(task.model(x_adv)), x_adv)
        x_adv = x_adv.detach() + task.step_size * gradient.sign()
        x_adv = torch.clamp(x_adv, task.x - task.eps, task.x + task.eps).clamp(0, 1)
    return x_adv


# --- losses ---


def adv_loss(task: Task, x_adv: Tensor, v: Tensor) -> Tensor:
    """CE(x')."""
    return F.cross_entropy(task.model(x_adv), task.y)


def trades_loss(task: Task, x_adv: Tensor, v: Tensor) -> Tensor:
    """CE(x) + beta KL(p(x) || p(x'))."""
    logits, logits_adv = task.model(task.x), task.model(x_adv)
    return F.cross_entropy(logits, task.y) + task.beta * _kl(logits, logits_adv)


def jac_loss(task: Task, x: Tensor, v: Tensor) -> Tensor:
    """CE(x) + alpha ||J(x)||^2."""
    x = x.clone().requires_grad_()
    logits = task.model(x)
    return F.cross_entropy(logits, task.y) + task.alpha * _squared_jacobian(logits, x, v)


def atlas_loss(task: Task, x_adv: Tensor, v: Tensor) -> Tensor:
    """CE(x') + alpha ||J(x')||^2 + beta KL(p(x') || p(x))."""
    x_adv = x_adv.clone().requires_grad_()
    logits_adv, logits = task.model(x_adv), task.model(task.x)
    local = F.cross_entropy(logits_adv, task.y) + task.alpha * _squared_jacobian(logits_adv, x_adv, v)
    return local + task.beta * _kl(logits_adv, logits)


def atlas_g_loss(task: Task, x_adv: Tensor, v: Tensor) -> Tensor:
    """CE(x') + beta KL(p(x') || p(x))."""
    logits_adv, logits = task.model(x_adv), task.model(task.x)
    return F.cross_entropy(logits_adv, task.y) + task.beta * _kl(logits_adv, logits)


def _kl(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    p, q = F.log_softmax(logits_p, 1), F.log_softmax(logits_q, 1)
    return F.kl_div(q, p, reduction="batchmean", log_target=True)


def _squared_jacobian(logits: Tensor, x: Tensor, v: Tensor) -> Tensor:
    """C ||v^T J||^2, the mean over the batch."""
    (row,) = torch.autograd.grad(logits, x, v, create_graph=True)
    return logits.shape[1] * row.square().sum() / len(x)


# --- the methods ---


def natural(task: Task) -> Callable[[], None]:
    return loop(task, lambda: task.x, adv_loss)


def jac(task: Task) -> Callable[[], None]:
    return loop(task, lambda: task.x, jac_loss)


def adv(task: Task) -> Callable[[], None]:
    return loop(task, lambda: climb_ce(task, uniform_start(task)), adv_loss)


def trades(task: Task) -> Callable[[], None]:
    return loop(task, lambda: climb_kl(task, trades_start(task)), trades_loss)


def atlas(task: Task) -> Callable[[], None]:
    return loop(task, lambda: climb_ce(task, uniform_start(task)), atlas_loss)


def atlas_g(task: Task) -> Callable[[], None]:
    return loop(task, lambda: climb_ce(task, uniform_start(task)), atlas_g_loss)
