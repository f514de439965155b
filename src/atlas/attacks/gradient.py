"""The gradient that white-box attacks climb."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from atlas.attacks.finite import finite
from atlas.attacks.frozen import Model


def input_gradient(
    model: Model, x_adv: Tensor, objective: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """f(x_adv) [B, C], and the gradient of objective(f(x_adv)) [B] with respect to x_adv; both finite."""
    x_adv = x_adv.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(x_adv)
        (gradient,) = torch.autograd.grad(objective(logits).sum(), x_adv)
    return logits.detach(), finite(gradient)
