"""How many stay right: accuracy with its n and a 95% interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Z_95 = 1.959963984540054
"""The 97.5% point of the standard normal distribution."""


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
    """Fatal flags, for which the number must not be read as an accuracy."""

    @property
    def rate(self) -> float:
        return self.right / self.n

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.rate, self.n)

    def plain(self) -> dict[str, Any]:
        """As JSON; one that a fatal flag makes meaningless has no number."""
        if self.reasons:
            return {"valid": False, "reasons": list(self.reasons)}
        numbers = {"right": self.right, "n": self.n, "rate": self.rate}
        return {"valid": True, **numbers, "interval": list(self.interval)}

    def __str__(self) -> str:
        if self.reasons:
            return f"invalid ({', '.join(self.reasons)})"
        low, high = self.interval
        return f"{self.rate:.1%} [{100 * low:.1f}, {100 * high:.1f}]"
