"""Drawings that several artefacts share."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from atlas.report import plots
from atlas.reproduce.comparison import filled_columns, title
from atlas.reproduce.findings import Findings
from atlas.reproduce.paper import TIME

PANELS = (4, 3)
"""In a line; the first where both leave as few places empty."""
PAPER, OURS = plots.PALETTE[6], plots.PALETTE[0]
SPAN, TICKS = (-4, 104), (0, 25, 50, 75, 100)
"""Of accuracies in %, the same in all panels, with room for a mark at either end."""


def dots(findings: Findings) -> Figure:
    """A panel for each column, a line for each row: the paper's number hollow, ours with its interval.

    A column in which nobody has a number yet has no panel, unless that holds for all.
    """
    every = [c for c in findings.order.artefact.columns if c != TIME]
    columns = [c for c in filled_columns(findings) if c != TIME] or every
    rows = findings.rows
    down, across = _grid(len(columns))
    names = [plots.label(findings.name(row)) for row in rows]
    with plots.style():
        height = down * (0.5 + 0.17 * len(rows)) + 0.5
        figure, axes = plots.subplots(
            down, across, width=plots.DOUBLE, height=height, sharex=True, sharey=True, squeeze=False
        )
        panels, empty = list(axes.flat)[: len(columns)], list(axes.flat)[len(columns) :]
        for axis, column in zip(panels, columns, strict=True):
            _panel(axis, findings, column)
            axis.set_yticks(range(len(rows)), names)
            axis.set_ylim(len(rows) - 0.5, -0.5)
        for axis in panels[-across:]:
            axis.tick_params(labelbottom=True)  # that above an empty place too
            axis.set_xlabel("accuracy (%)")
        _legend(figure, panels, empty)
        figure.suptitle(plots.label(title(findings)), fontsize=8)
    return figure


def _grid(count: int) -> tuple[int, int]:
    """Lines of panels, and panels in a line, with as few empty places as can be."""
    shapes = [(-(-count // across), min(across, count)) for across in PANELS]
    return min(shapes, key=lambda shape: shape[0] * shape[1])


def _panel(axis: Any, findings: Findings, column: str) -> None:
    values = [(k, findings.value(row, column)) for k, row in enumerate(findings.rows)]
    theirs = [(k, v.paper) for k, v in values if v.paper is not None]
    mine = [(k, v) for k, v in values if v.ours is not None]
    axis.plot([x for _, x in theirs], [k for k, _ in theirs], "D", mfc="none", mec=PAPER, zorder=3)
    for k, v in mine:
        low, high = v.interval or (v.ours, v.ours)
        axis.plot([low, high], [k, k], color=OURS, lw=1)
        axis.plot([v.ours], [k], "x" if v.marks else "o", color=OURS)
    axis.set_title(plots.label(column))
    axis.set_xlim(*SPAN)
    axis.set_xticks(TICKS)


def _legend(figure: Figure, panels: list[Any], empty: list[Any]) -> None:
    """Of the marks that are drawn: in the first empty place, or below all where there is none."""
    drawn = {line.get_marker() for axis in panels for line in axis.lines if len(line.get_xdata())}
    marks = {"D": "paper", "o": "ours, 95% interval", "x": "ours, see the notes"}
    looks: dict[str, dict[str, Any]] = {"D": {"mfc": "none", "mec": PAPER}}
    shown = {mark: name for mark, name in marks.items() if mark in drawn}
    owner = empty[0] if empty else panels[0]
    handles = [
        owner.plot([], [], mark, color=OURS, label=name, **looks.get(mark, {}))[0]
        for mark, name in shown.items()
    ]
    for axis in empty:
        axis.set_axis_off()
    if empty:
        owner.legend(handles=handles, loc="center")
    else:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
