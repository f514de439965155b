"""NaN and infinity under attack are refused, because they would pass for robustness."""

from __future__ import annotations

from torch import Tensor

from atlas.errors import NumericError


def finite(values: Tensor) -> Tensor:
    """The logits or input gradients, if all are finite.

    The argmax of a NaN is an answer, and its sign is 0: a model that makes them would seem to stand firm.
    """
    if not values.sum().isfinite() and not values.isfinite().all():
        raise NumericError(
            "the model's logits or input gradients are not finite under attack, so no accuracy can be given: "
            "look for overflow, a division by zero or weights that have diverged"
        )
    return values
