"""What the figures of measurements share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from atlas.disk import write_atomic
from atlas.errors import choose
from atlas.report import plots

GRAY = "#777777"


def kind_of(path: Path) -> str:
    """The kind of figure that the path's ending says."""
    return choose("kind of figure", path.suffix.removeprefix("."), {kind: kind for kind in plots.FORMATS})


def write_figure(figure: Figure, path: Path) -> None:
    write_atomic(path, plots.rendered(figure, kind_of(path)))


def plain_log(axis: Any) -> None:
    """Numbers at 1, 2 and 5, as one writes them, along a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())
