"""NaN and infinity under attack are refused, because they would pass for robustness."""

from __future__ import annotations

from torch import Tensor

from atlas.errors import NumericError


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
