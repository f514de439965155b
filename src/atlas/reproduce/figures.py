"""Drawings that several artefacts share."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.figure import Figure

from atlas.report import plots
from atlas.reproduce.comparison import title
from atlas.reproduce.findings import Findings
from atlas.reproduce.paper import TIME

PANELS = 4
"""In a line."""


def dots(findings: Findings) -> Figure:
    """A panel for each column, a line for each row: the paper's number hollow, ours with its interval.

    A column in which nobody has a number yet has no panel, unless that holds for all.
    """
    every = [c for c in findings.order.artefact.columns if c != TIME]
    columns = [c for c in every if _has_numbers(findings, c)] or every
    rows = findings.rows
    across = min(PANELS, len(columns))
    down = math.ceil(len(columns) / across)
    names = [plots.label(findings.name(row)) for row in rows]
    with plots.style():
        height = down * (0.5 + 0.17 * len(rows)) + 0.35
        figure, axes = plots.subplots(
            down, across, width=plots.DOUBLE, height=height, sharey=True, squeeze=False
        )
        for axis, column in zip(axes.flat, columns, strict=False):
            _panel(axis, findings, column)
            axis.set_yticks(range(len(rows)), names)
            axis.set_ylim(len(rows) - 0.5, -0.5)
        for axis in list(axes.flat)[len(columns) :]:
            axis.set_visible(False)
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower right", ncols=2)
        figure.suptitle(plots.label(title(findings)), fontsize=8)
    return figure


def _has_numbers(findings: Findings, column: str) -> bool:
    """Whether any row has something to draw."""
    values = [findings.value(row, column) for row in findings.rows]
    return any(value.paper is not None or value.ours is not None for value in values)


def _panel(axis: Any, findings: Findings, column: str) -> None:
    paper, ours = plots.PALETTE[6], plots.PALETTE[0]
    values = [(k, findings.value(row, column)) for k, row in enumerate(findings.rows)]
    theirs = [(k, v.paper) for k, v in values if v.paper is not None]
    mine = [(k, v) for k, v in values if v.ours is not None]
    axis.plot([x for _, x in theirs], [k for k, _ in theirs], "D", mfc="none", mec=paper, label="paper")
    for k, v in mine:
        low, high = v.interval or (v.ours, v.ours)
        axis.plot([low, high], [k, k], color=ours, lw=1)
        axis.plot([v.ours], [k], "x" if v.marks else "o", color=ours, label=None)
    axis.plot([], [], "o", color=ours, label="ours, 95% interval (x: see the notes)")
    axis.set_title(plots.label(column))
