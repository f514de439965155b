"""The look of plots in papers, and how they are saved: PDF, SVG and PNG, without a display."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.rcsetup import cycler
from matplotlib.textpath import text_to_path

from atlas.files import write_atomic
from atlas.terminal import one_line

SINGLE, DOUBLE = 3.25, 6.75
"""Inches: one column of a two-column paper, and both."""
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito 2008: told apart with any common colour vision."""
LONGEST, WIDEST = 40, 2.6
"""Characters and inches of a name in a legend: what fits below one column."""
FORMATS = ("pdf", "svg", "png")
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so every machine draws the same
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.prop_cycle": cycler(color=PALETTE),
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # TrueType: what journals ask for, and text that can be selected
    "svg.fonttype": "none",  # text as text
    "svg.hashsalt": "atlas",  # the same figure gives the same file
}


@contextmanager
def style() -> Iterator[None]:
    """Draw within this, and what was set before comes back."""
    with matplotlib.rc_context(STYLE):
        yield


def subplots(
    rows: int = 1, columns: int = 1, *, width: float = SINGLE, height: float | None = None, **options: Any
) -> tuple[Figure, Any]:
    """A figure and its axes, `width` inches wide; within `style()`. As pyplot's, but leaves nothing open."""
    figure = Figure(figsize=(width, height or width / columns * 0.72 * rows))
    return figure, figure.subplots(rows, columns, **options)


def label(text: str) -> str:
    """Text for a label or a legend as it is: dollars start no formula, an underscore hides no line."""
    shown = one_line(text).replace("$", r"\$")
    return f"\N{THIN SPACE}{shown}" if shown.startswith("_") else shown


def text_width(text: str) -> float:
    """Inches that text takes in a legend; within `style()`."""
    font = FontProperties(size=matplotlib.rcParams["legend.fontsize"])
    with _any_characters():
        points, *_ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(points) / 72


def shortened(text: str) -> str:
    """Text without its middle where it is too long for a legend: names differ at their ends."""
    text = one_line(text)
    keep = min(len(text), LONGEST)
    while text_width(shown := _without_middle(text, keep)) > WIDEST:
        keep -= 1
    return shown


def _without_middle(text: str, keep: int) -> str:
    if len(text) <= keep:
        return text
    return f"{text[: keep // 2].rstrip()}…{text[len(text) - (keep - 1) // 2 :].lstrip()}"


@contextmanager
def _any_characters() -> Iterator[None]:
    """Characters that the font lacks are drawn as boxes: nothing that anybody has to be warned of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def save(figure: Figure, path: Path) -> list[Path]:
    """Write path.pdf, path.svg and path.png, each whole or not at all, the same bytes for the same figure."""
    written = []
    for kind in FORMATS:
        place = path.with_name(f"{path.name}.{kind}")
        write_atomic(place, rendered(figure, kind))
        written.append(place)
    return written


def rendered(figure: Figure, kind: str) -> bytes:
    """The figure as a file of this kind."""
    undated: dict[str, Any] = {
        "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
        "svg": {"Date": None, "Creator": None},
        "png": {"Software": None},
    }
    buffer = io.BytesIO()
    with style(), _any_characters():
        figure.savefig(buffer, format=kind, metadata=undated[kind])
    return buffer.getvalue()
