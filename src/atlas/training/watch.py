"""The watch for catastrophic overfitting (App. B and E): robustness gone within an epoch, unseen."""

from __future__ import annotations

import math
from dataclasses import dataclass

FALL = 0.10
"""A fall of validation robust accuracy below its best by more than this, and than chance ..."""
JUMP = 2.0
"""... while the Jacobian norm is this many times what it was at the best epoch ..."""
SPARED = 0.5
"""... and clean accuracy falls by less than this share of it, is a collapse: else all got worse."""
CHANCE = 2.0
"""Standard errors of a difference of two accuracies."""


@dataclass
class Watch:
    """Compares each epoch with the best one. Part of the saved state."""

    best: float = -1.0
    clean_at_best: float = 0.0
    jacobian_at_best: float = 0.0
    collapsed: bool = False

    def look(self, epoch: int, robust: float, clean: float, jacobian: float, n: int) -> str | None:
        """Words for a collapse that this epoch shows first, else None; accuracies are of n images."""
        if robust > self.best:
            self.best, self.clean_at_best, self.jacobian_at_best = robust, clean, jacobian
        before, fall = self.collapsed, self.best - robust
        fell = fall > max(FALL, CHANCE * math.sqrt((_variance(self.best) + _variance(robust)) / n))
        fell = fell and self.clean_at_best - clean < SPARED * fall
        self.collapsed = fell and (before or jacobian > JUMP * self.jacobian_at_best)
        if before or not self.collapsed:
            return None
        return (
            f"collapse (catastrophic overfitting) in epoch {epoch + 1}: validation robust accuracy fell "
            f"from {self.best:.1%} to {robust:.1%} while ||J||^2 rose from {self.jacobian_at_best:.3g} "
            f"to {jacobian:.3g} and clean accuracy stayed at {clean:.1%}: the model resists little but the "
            "attack that it trains on."
        )


def _variance(share: float) -> float:
    return share * (1 - share)
