"""How many stay right: accuracy with its n and a 95% interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Z_95 = 1.959963984540054
"""The 97.5% point of the standard normal distribution."""

ON_CLEAN, WORST_CASE = "clean", "worst case"
"""The rows of every table of accuracies beside the attacks; the worst case is taken image by image."""
SPOIL_ANSWERS = ("random", "changing", "batch-dependent", "non-finite")
"""Fatal warnings that make the answers themselves meaningless, on clean images too. The others doubt the
gradients, and an image that fools a model does so whatever led to it."""


def wilson(rate: float, n: int) -> tuple[float, float]:
    """The 95% score interval of a rate among n, which holds near 0 and 1 too."""
    centre = (rate + Z_95**2 / (2 * n)) / (1 + Z_95**2 / n)
    half = Z_95 * math.sqrt(rate * (1 - rate) / n + Z_95**2 / (4 * n**2)) / (1 + Z_95**2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True)
class Score:
    """`right` of `n` examples."""

    right: int
    n: int
    reasons: tuple[str, ...] = ()
    """Fatal warnings, for which the number must not be read as an accuracy."""

    @property
    def rate(self) -> float:
        return self.right / self.n

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.rate, self.n)

    @property
    def is_bound(self) -> bool:
        """Whether the number is invalid as an accuracy and still an upper bound of it."""
        return bool(self.reasons) and not set(self.reasons) & set(SPOIL_ANSWERS)

    def plain(self) -> dict[str, Any]:
        """As JSON; where a fatal warning makes it meaningless, without a rate, and at best with a bound."""
        counts = {"right": self.right, "n": self.n}
        if self.reasons:
            bound = {**counts, "at_most": self.rate} if self.is_bound else {}
            return {"valid": False, "reasons": list(self.reasons), **bound}
        return {"valid": True, **counts, "rate": self.rate, "interval": list(self.interval)}

    @property
    def short(self) -> str:
        """As `str`, without the reasons."""
        if self.reasons:
            return f"at most {self.rate:.1%}" if self.is_bound else "invalid"
        low, high = self.interval
        return f"{self.rate:.1%} [{100 * low:.1f}, {100 * high:.1f}]"

    def __str__(self) -> str:
        bound = "upper bound; likely lower, because of " if self.is_bound else ""
        return f"{self.short} ({bound}{', '.join(self.reasons)})" if self.reasons else self.short
