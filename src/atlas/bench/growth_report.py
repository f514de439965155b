"""The measured growth as plain data, as rows of text, as Markdown, and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from atlas.bench.drawing import GRAY, plain_log, write_figure
from atlas.bench.growth import Growth
from atlas.bench.report import facts, grid, markers, quartiles, ratio
from atlas.report import plots

GROWTH_MARKERS = markers("growth")
Records = Sequence[Mapping[str, Any]]


def growth_summary(found: Sequence[Growth]) -> list[dict[str, Any]]:
    """For each method and point: all seconds, their quartiles, and those of the ratios within a repeat."""
    return [
        {
            "method": g.case.label,
            "model": g.point.model,
            "batch": g.point.batch,
            "flops": g.flops,
            "ms": quartiles(1e3 * np.array(g.quiet)),
            "busy_over_quiet": quartiles(np.array(g.busy) / np.array(g.quiet)),
            "seconds": {"quiet": g.quiet, "busy": g.busy},
        }
        for g in found
    ]


def per_image(record: Mapping[str, Any]) -> float:
    """Milliseconds."""
    return float(record["ms"][1]) / int(record["batch"])


def per_gigaflop(record: Mapping[str, Any]) -> float:
    """Milliseconds."""
    return float(record["ms"][1]) / (int(record["flops"]) / 1e9)


UNITS = {"batch": ("ms an image", per_image), "width": ("ms a GFLOP", per_gigaflop)}
"""What the time is divided by along each axis: if it grows in proportion, what is left is the same."""


def growth_headings(axis: str) -> tuple[str, ...]:
    return "method", "model", "batch", "ms a step", UNITS[axis][0], "busy / quiet"


def growth_rows(axis: str, records: Records) -> list[tuple[str, ...]]:
    """Text under `growth_headings`: medians, with the quartiles of the ratios in brackets."""
    unit = UNITS[axis][1]
    return [
        (
            *(r["method"], r["model"], str(r["batch"])),
            *(f"{r['ms'][1]:.1f}", f"{unit(r):.3g}", ratio(r["busy_over_quiet"])),
        )
        for r in records
    ]


def growth_words(axis: str, records: Records) -> list[str]:
    """For each method: how far it is from growing in proportion, where it is steepest, and a busy core."""
    name, unit = UNITS[axis]
    said = []
    for method in dict.fromkeys(r["method"] for r in records):
        mine = [r for r in records if r["method"] == method]
        costs = [unit(r) for r in mine]
        rises = [b / a for a, b in pairwise(costs)] or [1.0]
        busy = max(r["busy_over_quiet"][1] for r in mine)
        said.append(
            f"{method}: {name}, largest / smallest {max(costs) / min(costs):.2f}; its largest rise from one "
            f"line to the next {max(rises):.2f}; busy / quiet at most {busy:.2f}."
        )
    return said


def growth_markdown(report: Mapping[str, Any]) -> str:
    """A table for each axis, with its words."""
    parts = [f"Measured on {facts(report)}."]
    for axis, records in report["axes"].items():
        parts.append(grid(growth_headings(axis), growth_rows(axis, records)))
        parts.append("\n".join(f"- {line}" for line in growth_words(axis, records)))
    return "\n\n".join(parts)


def draw_growth(report: Mapping[str, Any], path: Path) -> None:
    """Write the figure, a panel for each axis; the kind is that of the path's ending."""
    axes_of = report["axes"]
    with plots.style():
        figure, axes = plots.subplots(1, len(axes_of), width=plots.DOUBLE, height=2.7, squeeze=False)
        for ax, (axis, records) in zip(axes.flat, axes_of.items(), strict=True):
            _panel(ax, axis, records)
        axes[0, 0].set_ylabel("seconds a step")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(handles))
        write_figure(figure, path)


def _panel(ax: Any, axis: str, records: Records) -> None:
    """Straight lines of slope 1 are growth in proportion."""
    batch = axis == "batch"
    for number, method in enumerate(dict.fromkeys(r["method"] for r in records)):
        mine = [r for r in records if r["method"] == method]
        across = [r["batch"] if batch else r["flops"] / 1e9 for r in mine]
        colour = plots.PALETTE[number % len(plots.PALETTE)]
        for way, line in {"quiet": "o-", "busy": "o--"}.items():
            up = [float(np.median(r["seconds"][way])) for r in mine]
            fill = colour if way == "quiet" else "none"
            ax.plot(across, up, line, color=colour, mfc=fill, label=plots.label(f"{method}, {way}"))
        slope = [float(np.median(mine[-1]["seconds"]["quiet"])) * a / across[-1] for a in across]
        ax.plot(across, slope, ":", color=GRAY, lw=0.8)
    ax.plot([], [], ":", color=GRAY, lw=0.8, label="in proportion")
    ax.set_xscale("log", base=2 if batch else 10)
    ax.set_yscale("log")
    plain_log(ax.xaxis)
    plain_log(ax.yaxis)
    if batch:
        sizes = sorted({r["batch"] for r in records})
        ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set_xlabel(plots.label(_across(axis, records)))


def _across(axis: str, records: Records) -> str:
    names = list(dict.fromkeys(r["model"] for r in records))
    if axis == "batch":
        return f"images a step, {', '.join(names)}"
    return f"GFLOPs a step, {names[0]} to {names[-1]}, batch {records[0]['batch']}"
