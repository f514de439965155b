"""What training costs, next to the bare passes that its equations need, as ratios in one run."""

from atlas.bench.cases import MEASURED, REFERENCE, Case, case
from atlas.bench.machine import machine
from atlas.bench.passes import EQUATIONS, Passes
from atlas.bench.report import (
    HEADINGS,
    check_markers,
    facts,
    markdown,
    put_between_markers,
    rows,
    summary,
)
from atlas.bench.step import WARM_UP, Pair, Timing, measure, pairs, random_batch

__all__ = [
    "EQUATIONS",
    "HEADINGS",
    "MEASURED",
    "REFERENCE",
    "WARM_UP",
    "Case",
    "Pair",
    "Passes",
    "Timing",
    "case",
    "check_markers",
    "facts",
    "machine",
    "markdown",
    "measure",
    "pairs",
    "put_between_markers",
    "random_batch",
    "rows",
    "summary",
]
