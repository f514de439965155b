"""The axes of a chart, and which numbers stand along them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """What is drawn along one side."""

    label: str
    ticks: Sequence[tuple[float, str]]
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        change = math.log if self.log else float
        low, high = change(self.low), change(self.high)
        return (change(value) - low) / (high - low) if high > low else 0.5


def percent(label: str, least: float = 0.0) -> Axis:
    """0 to 100, or from the ten below the least value where that leaves more than half of it empty."""
    tens = math.floor(10 * least) if least > 0.5 else 0
    ticks = [k for k in range(tens, 11) if tens >= 7 or k % 2 == 0 or k == tens]
    return Axis(label, [(k / 10, f"{10 * k}") for k in ticks], tens / 10, 1.0)


def even(label: str, low: float, high: float) -> Axis:
    """Round numbers, about seven, over a range."""
    rough = max(high - low, 1e-9) / 7
    base = 10.0 ** math.floor(math.log10(rough))
    step = next(base * k for k in (1, 2, 5, 10) if base * k >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(label, [(k * step, f"{k * step:.4g}") for k in range(first, last + 1)], low, high)


def powers(label: str, values: Sequence[float]) -> Axis:
    """Powers of ten around positive values."""
    low = math.floor(math.log10(min(values, default=1.0)))
    high = max(low + 1, math.ceil(math.log10(max(values, default=10.0))))
    every = max(1, math.ceil((high - low) / 6))
    ticks = [(10.0**k, f"{10.0**k:g}") for k in range(low, high + 1, every)]
    return Axis(label, ticks, 10.0**low, 10.0**high, log=True)
