"""The gradient that white-box attacks climb, and what to do where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atlas.attacks.model_variants import Model
from atlas.errors import NumericError, UsageError

if TYPE_CHECKING:
    from atlas.attacks.attack import Attack


class NoGradients(UsageError):
    """A model whose outputs do not follow from the images by differentiable operations."""

    def __init__(self, attack: str = "the attack") -> None:
        from atlas.attacks import ATTACKS  # not above: the registry is made of attacks, and those import this

        others = ", ".join(name for name, kind in ATTACKS.items() if not kind.white_box)
        super().__init__(
            f"{attack} needs gradients and the model gives none: its outputs do not follow from the images "
            "by differentiable operations (an ONNX file, or no_grad or detach in forward); choose attacks "
            f"that only need its answers: {others}"
        )


class NotFinite(NumericError):
    """Logits or gradients that are not finite, and in which lanes (bool [B])."""

    def __init__(self, lanes: Tensor) -> None:
        super().__init__(
            f"the model's logits or input gradients are not finite under attack for {int(lanes.sum())} of "
            f"{len(lanes)} images, so no accuracy can be given: look for overflow, a division by zero or "
            "weights that have diverged"
        )
        self.lanes = lanes


def finite(values: Tensor) -> Tensor:
    """The logits or input gradients [B, ...], if all are finite.

    The argmax of a NaN is an answer, and its sign is 0: a model that makes them would seem to stand firm.
    """
    if not values.sum().isfinite():
        lanes = ~values.flatten(1).isfinite().all(1)
        if lanes.any():
            raise NotFinite(lanes)
    return values


def input_gradient(
    model: Model, x_adv: Tensor, objective: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """f(x_adv) [B, C], and the gradient of objective(f(x_adv)) [B] with respect to x_adv; both finite."""
    logits, gradient = _input_gradient(model, x_adv, objective)
    return logits, finite(gradient)


def input_gradients(
    model: Model, x: Tensor, y: Tensor, objective: Callable[[Tensor, Tensor], Tensor], batch_size: int
) -> Tensor:
    """The gradient of objective(f(x), y) [N] with respect to x, at most `batch_size` images at a time."""

    def gradient(part: Tensor, labels: Tensor) -> Tensor:
        return _input_gradient(model, part, lambda logits: objective(logits, labels))[1]

    parts = zip(torch.split(x, batch_size), torch.split(y, batch_size), strict=True)
    return finite(torch.cat([gradient(*part) for part in parts]))


def _input_gradient(
    model: Model, x_adv: Tensor, objective: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    x_adv = x_adv.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(x_adv)
        total = objective(logits).sum()
        gradient = torch.autograd.grad(total, x_adv, allow_unused=True)[0] if total.requires_grad else None
    if gradient is None:
        raise NoGradients
    return logits.detach(), gradient


def has_gradients(model: Model, x: Tensor) -> bool:
    """Whether the model's outputs can be differentiated with respect to images such as x [B, ...]."""
    try:
        _input_gradient(model, x, torch.Tensor.sum)
    except NoGradients:
        return False
    return True


def check_gradients(model: Model, attack: Attack, x: Tensor) -> None:
    """Refuse a white-box attack on a model without gradients. The model is asked once, at the first of x."""
    if attack.white_box and len(x) and not has_gradients(model, x[:1]):
        raise NoGradients(type(attack).__name__)
