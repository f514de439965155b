"""Per-example scalars: what methods minimise and attacks maximise. Logits are [B, C], results [B]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from atlas.rng import Rng

Projections = int | Literal["exact"]

LEAST_SPREAD = 1e-12
"""Added to the spread of the logits by which DLR divides, as in the original: all logits may be equal."""


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """CE(x) = -log p_y(x)."""
    return F.cross_entropy(logits, y, reduction="none")


def kl(logits_p: Tensor, logits_q: Tensor) -> Tensor:
    """KL(p || q) = sum_i p_i (log p_i - log q_i), with gradients through both.

    In log space with a log target: with probabilities as the target, a p_i that underflows to 0 would
    make the gradient NaN. Half precision, in which nearly equal answers have no divergence, is left first.
    """
    pair = (logits_p, logits_q)
    log_p, log_q = (F.log_softmax(z, 1, dtype=torch.promote_types(z.dtype, torch.float32)) for z in pair)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """max_{i != y} f_i(x) - f_y(x): positive exactly where x is misclassified."""
    correct = logits.gather(1, y[:, None])
    others = logits.scatter(1, y[:, None], -torch.inf)
    return others.amax(1) - correct[:, 0]


def targeted_margin(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """f_t(x) - f_y(x): positive where x looks more like the target t, int64 [B], than like y."""
    pair = logits.gather(1, torch.stack([target, y], 1))
    return pair[:, 0] - pair[:, 1]


def dlr(logits: Tensor, y: Tensor) -> Tensor:
    """(max_{i != y} f_i - f_y) / (f_(1) - f_(3)), with f_(k) the k-th largest logit (Croce and Hein 2020).

    The difference of logits ratio is the margin in units of the spread at the top: neither a shift nor a
    scale of the logits changes it, so its gradient does not fade where a model is sure of itself. With
    fewer than 3 classes there is no f_(3), and it is the margin itself.
    """
    if logits.shape[1] < 3:
        return margin(logits, y)
    first, _, third = logits.topk(3, 1).values.unbind(1)
    return margin(logits, y) / (first - third + LEAST_SPREAD)


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """(f_t - f_y) / (f_(1) - (f_(3) + f_(4)) / 2), for a target t, int64 [B] (Croce and Hein 2020).

    It takes two logits below the top, because with f_(3) alone it would be the constant -1, without a
    gradient, where y is first and t third.
    With fewer than 4 classes there is no f_(4), and it is the targeted margin itself.
    """
    if logits.shape[1] < 4:
        return targeted_margin(logits, y, target)
    first, _, third, fourth = logits.topk(4, 1).values.unbind(1)
    return targeted_margin(logits, y, target) / (first - (third + fourth) / 2 + LEAST_SPREAD)


def squared_jacobian(
    logits: Tensor, x: Tensor, rng: Rng, projections: Projections = 1, *, create_graph: bool = True
) -> Tensor:
    """||J(x)||_F^2 of J = df/dx, with f(x) = `logits`.

    With v uniform on the unit sphere of R^C, C ||v^T J||^2 is unbiased for ||J||_F^2 (Hoffman et al.),
    and one backward pass gives it whatever C is; `projections` of them are averaged. "exact" takes one
    backward pass for each class. It is the square, without a factor 1/2 (App. A.1).
    """
    classes = logits.shape[1]
    if projections == "exact":
        directions = list(torch.eye(classes, dtype=logits.dtype, device=logits.device).unsqueeze(1))
        scale = 1.0
    else:
        directions = [rng.fold("projection", k).sphere(classes, logits.dtype) for k in range(projections)]
        scale = classes / projections
    total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    for v in directions:
        (row,) = torch.autograd.grad(
            logits, x, v.expand_as(logits), create_graph=create_graph, retain_graph=True
        )
        total = total + row.square().flatten(1).sum(1)
    return total * scale


def squared_secant(
    model: Callable[[Tensor], Tensor], logits: Tensor, x: Tensor, rng: Rng, length: float
) -> Tensor:
    """||f(x + h u) - f(x)||^2 / h^2 with u ~ N(0, I), h = `length` in pixel units and f(x) = `logits`.

    Its mean goes to ||J(x)||_F^2 as h goes to 0, and is equal to it where f is linear between the two points.
    For a larger h it measures how much f changes around x. It takes a forward pass and no second derivative.
    """
    u = rng.fold("secant").normal(x.shape[1:], x.dtype)
    return (model(x + length * u) - logits).square().sum(1) / length**2


def logits_and_squared_jacobian(
    model: Callable[[Tensor], Tensor], x: Tensor, rng: Rng, projections: Projections = 1
) -> tuple[Tensor, Tensor]:
    """f(x) and ||J(x)||_F^2 from one forward pass, in full precision even under autocast.

    Rounding weighs most on the second derivatives that train this term. To round them all the same, use a
    model that enters autocast itself. Under `torch.no_grad()` these are measurements without a graph.
    """
    x, graph = x.detach().requires_grad_(), torch.is_grad_enabled()
    with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
        logits = model(x)
        jac = squared_jacobian(logits, x, rng, projections, create_graph=graph)
    return (logits, jac) if graph else (logits.detach(), jac.detach())


ATTACK_OBJECTIVES: dict[str, Callable[[Tensor, Tensor, Any], Tensor]] = {
    "ce": lambda logits_adv, y, logits: cross_entropy(logits_adv, y),
    "kl": lambda logits_adv, y, logits: kl(logits, logits_adv),
    "margin": lambda logits_adv, y, logits: margin(logits_adv, y),
    "dlr": lambda logits_adv, y, logits: dlr(logits_adv, y),
}
"""What an attack may climb, of (logits_adv, y, clean logits), the last for "kl" only: KL(p(x) || p(x'))."""
