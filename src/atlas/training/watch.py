"""The watch for catastrophic overfitting (App. B and E): robustness gone within an epoch, unseen."""

from __future__ import annotations

from dataclasses import dataclass

FALL = 0.10
"""A fall of validation robust accuracy below its best by more than this ..."""
JUMP = 2.0
"""... while the Jacobian norm is this many times what it was at the best epoch, is a collapse."""


@dataclass
class Watch:
    """Compares each epoch with the best one. Part of the saved state."""

    best: float = -1.0
    jacobian_at_best: float = 0.0
    collapsed: bool = False

    def look(self, epoch: int, robust: float, jacobian: float) -> str | None:
        """Words for a collapse that this epoch shows first, else None."""
        if robust > self.best:
            self.best, self.jacobian_at_best = robust, jacobian
        before = self.collapsed
        fell = self.best - robust > FALL
        self.collapsed = fell and (before or jacobian > JUMP * self.jacobian_at_best)
        if before or not self.collapsed:
            return None
        return (
            f"collapse (catastrophic overfitting) in epoch {epoch + 1}: validation robust accuracy fell "
            f"from {self.best:.1%} to {robust:.1%} while ||J||^2 rose from {self.jacobian_at_best:.3g} "
            f"to {jacobian:.3g}. The model now only resists the attack that it trains on."
        )
