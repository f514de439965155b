"""The growth of eps, the learning rate, when to stop, and what validation says about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from atlas.config import check_counts, check_fields
from atlas.errors import UsageError


@dataclass(frozen=True)
class Schedule:
    """The paper's guided schedule (App. B), or a fixed one.

    "guided": after `plateau` epochs without gain in validation robust accuracy the learning rate is
    multiplied by `factor`; after `patience` epochs without gain training stops; `epochs` is only a cap.
    Epochs are counted once eps has reached its full value: validation attacks at the full eps from the
    start, so before that its accuracy says little about the learning rate.

    Fixed: "constant"; "piecewise" (times `factor` at each of the `milestones`, in epochs); "cosine" to 0;
    "one-cycle", up in a straight line for the first 40% of the epochs and down to 0.

    Args:
        kind: one of these.
        epochs: how many epochs, or at most how many.
        ramp_epochs: eps grows from 0 in a straight line during these first epochs.
        plateau: epochs without gain before the learning rate falls.
        patience: epochs without gain before training stops.
        factor: by which the learning rate is multiplied.
        milestones: of "piecewise", in epochs, ascending.

    Raises:
        UsageError: for a value out of its range.

    Example:
        >>> import atlas
        >>> atlas.Schedule(kind="piecewise", epochs=30, milestones=(15, 25)).milestones
        (15.0, 25.0)
    """

    kind: Literal["guided", "constant", "piecewise", "cosine", "one-cycle"] = "guided"
    epochs: int = 100
    ramp_epochs: int = 15
    plateau: int = 2
    patience: int = 10
    factor: float = 0.2
    milestones: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        check_counts(epochs=self.epochs, plateau=self.plateau, patience=self.patience)
        if self.ramp_epochs < 0:
            raise UsageError(f"ramp_epochs must be >= 0, got {self.ramp_epochs}")
        if self.ramp_epochs > self.epochs:
            raise UsageError(
                f"ramp_epochs is {self.ramp_epochs} and epochs is {self.epochs}: eps would never reach its "
                "full value; set ramp_epochs (training.schedule.ramp_epochs) to no more than epochs"
            )
        if not 0 < self.factor <= 1:
            raise UsageError(f"factor must be > 0 and <= 1, got {self.factor}")
        if self.kind == "piecewise" and not self.milestones:
            raise UsageError("a piecewise schedule needs milestones, in epochs, such as [50, 75]")
        if not all(0 <= m < math.inf for m in self.milestones):
            raise UsageError(f"milestones must be epochs >= 0, such as [50, 75], got {list(self.milestones)}")

    def ramp(self, epoch: float) -> float:
        """eps_now / eps_final after this many epochs: 0 at the start, 1 after `ramp_epochs` (App. A.3)."""
        return min(1.0, epoch / self.ramp_epochs) if self.ramp_epochs else 1.0

    def lr_factor(self, epoch: float, cuts: int) -> float:
        """The learning rate over its initial value, after this many epochs and guided cuts."""
        guided = self.factor**cuts
        done = epoch / self.epochs
        match self.kind:
            case "piecewise":
                return guided * self.factor ** sum(epoch >= m for m in self.milestones)
            case "cosine":
                return guided * (1 + math.cos(math.pi * done)) / 2
            case "one-cycle":
                return guided * min(done / 0.4, (1 - done) / 0.6)
        return guided


@dataclass
class PlateauTracker:
    """What follows from the validation accuracies so far. Part of the saved state."""

    best: float = -1.0
    best_epoch: int = -1
    cuts: int = 0
    since_best: int = 0
    since_cut: int = 0

    def update(self, epoch: int, accuracy: float, schedule: Schedule) -> bool:
        """Add the accuracy after an epoch (the first is 0); whether it is the best so far."""
        improved = accuracy > self.best
        # No gain, but an epoch at the full eps is preferred to one of the ramp that is as good.
        preferred = accuracy == self.best and epoch >= schedule.ramp_epochs > self.best_epoch
        if improved or preferred:
            self.best, self.best_epoch = accuracy, epoch
        if improved:
            self.since_best = self.since_cut = 0
        elif epoch >= schedule.ramp_epochs:
            self.since_best += 1
            self.since_cut += 1
            if schedule.kind == "guided" and self.since_cut == schedule.plateau:
                self.cut()
        return improved or preferred

    def cut(self) -> None:
        """One cut of the learning rate."""
        self.cuts += 1
        self.since_cut = 0

    def finished(self, epoch: int, schedule: Schedule) -> str | None:
        """Why training ends after this epoch, or None if it continues."""
        if schedule.kind == "guided" and self.since_best >= schedule.patience:
            return f"no gain for {schedule.patience} epochs"
        return f"all {schedule.epochs} epochs done" if epoch + 1 >= schedule.epochs else None


FALL = 0.10
"""A fall of validation robust accuracy below its best by more than this, and than chance ..."""
JUMP = 2.0
"""... while the Jacobian norm is this many times what it was at the best epoch ..."""
SPARED = 0.5
"""... and clean accuracy falls by less than this share of it, is a collapse: else all got worse."""
CHANCE = 2.0
"""Standard errors of a difference of two accuracies."""


@dataclass
class CollapseDetector:
    """Compares each epoch with the best one. Part of the saved state."""

    best: float = -1.0
    clean_at_best: float = 0.0
    jacobian_at_best: float = 0.0
    collapsed: bool = False

    def check(self, epoch: int, robust: float, clean: float, jacobian: float, n: int) -> str | None:
        """A message if this epoch is the first of a collapse, else None; accuracies are of n images."""
        if robust > self.best:
            self.best, self.clean_at_best, self.jacobian_at_best = robust, clean, jacobian
        before, fall = self.collapsed, self.best - robust
        chance = CHANCE * math.sqrt((self.best * (1 - self.best) + robust * (1 - robust)) / n)
        fell = fall > max(FALL, chance) and self.clean_at_best - clean < SPARED * fall
        self.collapsed = fell and (before or jacobian > JUMP * self.jacobian_at_best)
        if before or not self.collapsed:
            return None
        return (
            f"collapse (catastrophic overfitting) in epoch {epoch + 1}: validation robust accuracy fell "
            f"from {self.best:.1%} to {robust:.1%} while ||J||^2 rose from {self.jacobian_at_best:.3g} "
            f"to {jacobian:.3g} and clean accuracy stayed at {clean:.1%}: the model resists little but the "
            "attack that it trains on."
        )


IMBALANCED = 0.1
"""Classes are imbalanced where the largest has this much more of the images than an equal share."""


def accuracies(sizes: Sequence[int], clean: Sequence[int], robust: Sequence[int]) -> dict[str, Any]:
    """What is recorded of a validation, from the images of each class and how many are classified correctly.

    By class, because an accuracy over all images can hide a class that was never learned.
    """
    total, classes = sum(sizes), sum(map(bool, sizes))
    record: dict[str, Any] = {"val_clean": sum(clean) / total, "val_robust": sum(robust) / total}
    majority = max(sizes) / total
    if classes > 1 and majority > 1 / classes + IMBALANCED:
        rates = [right / size for right, size in zip(robust, sizes, strict=True) if size]
        record |= {"val_majority": majority, "val_balanced": sum(rates) / classes}
    answered = [label for label, right in enumerate(clean) if right]
    if classes > 1 and len(answered) == 1 and clean[answered[0]] == sizes[answered[0]]:
        record["constant"] = True  # all images of one class are correct, and no others
    return record
