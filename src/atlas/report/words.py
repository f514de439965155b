"""Numbers and names as a reader wants them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atlas.config import table_of
from atlas.terminal import one_line
from atlas.training.settings import REGISTRIES

NORMS = {"linf": "L∞", "l2": "L2"}
LEAST_P = 0.001
"""Smaller p-values are not told apart in words."""
LEVELS = 255
"""Steps of an 8-bit pixel, by which radii are often given."""


def radius(eps: float) -> str:
    """0.3, or 8/255 where it is a whole number of pixel levels and not written shorter."""
    levels = eps * LEVELS
    whole, short = abs(levels - round(levels)) < 1e-6, f"{eps:.4g}"
    return f"{round(levels)}/{LEVELS}" if whole and float(short) != eps else short


def threat_words(table: Mapping[str, Any]) -> str:
    """From a threat's table: L∞, ε = 0.3."""
    name = str(table["name"])
    return f"{NORMS.get(name, name)}, ε = {radius(float(table['eps']))}"


def p_words(p: float) -> str:
    return f"p = {p:.2g}" if p >= LEAST_P else f"p < {LEAST_P}"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def settings(table: Mapping[str, Any]) -> str:
    """A table in one line, without what is not set."""
    parts = [
        f"{key} {f'({settings(value)})' if isinstance(value, Mapping) else value}"
        for key, value in table.items()
        if key != "name" and value is not None
    ]
    return one_line(", ".join([*filter(None, [str(table.get("name", ""))]), *parts]))


def method_words(method: object) -> str:
    """The method's name and its weights."""
    table = table_of(method, REGISTRIES)
    return settings({k: v for k, v in table.items() if k in ("name", "alpha", "beta", "gamma")})
