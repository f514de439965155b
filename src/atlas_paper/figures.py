"""Drawings that several artefacts share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from atlas.reports import plots
from atlas_paper.artefact import Row
from atlas_paper.comparison import filled_columns, title
from atlas_paper.paper import TIME
from atlas_paper.results import Findings, Value

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


MARKERS = ("o", "s", "^", "v")


@dataclass(frozen=True)
class Curve:
    """The rows of one preset, of those with these settings."""

    preset: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def has(self, row: Row) -> bool:
        return row.preset == self.preset and self.settings.items() <= row.changes.items()


@dataclass(frozen=True)
class Lines:
    """The drawing of a sweep."""

    over: str
    """The setting along the axis, by its dotted key."""
    name: str
    curves: Mapping[str, Curve]
    """By their names in the legend."""
    log: bool = True

    def __call__(self, findings: Findings) -> Figure:
        tasks = list(dict.fromkeys(row.task for row in findings.rows))
        with plots.style():
            figure, axes = plots.subplots(len(tasks), 2, width=plots.DOUBLE * 0.8, squeeze=False)
            for line, task in zip(axes, tasks, strict=True):
                rows = [row for row in findings.rows if row.task == task]
                columns = findings.order.shown(rows[0])
                for axis, column in zip(line, columns, strict=True):
                    self._panel(axis, findings, rows, column)
                    axis.set_title(plots.label(f"{task}: {column}"))
                    axis.set_ylabel("accuracy (%)")
            handles, labels = axes[0][0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
            figure.suptitle(plots.label(title(findings)), fontsize=8)
        return figure

    def _panel(self, axis: Any, findings: Findings, rows: list[Row], column: str) -> None:
        known = False
        for k, (name, curve) in enumerate(self.curves.items()):
            look: dict[str, Any] = {"color": plots.PALETTE[k], "marker": MARKERS[k]}
            values = [(row.changes[self.over], findings.value(row, column)) for row in rows if curve.has(row)]
            if not values:
                continue
            _curve(axis, values, {**look, "label": name})
            theirs = [(x, value.paper) for x, value in values if value.paper is not None]
            known = known or bool(theirs)
            axis.plot([x for x, _ in theirs], [y for _, y in theirs], "D", mfc="none", mec=look["color"])
        if known:
            axis.plot([], [], "D", mfc="none", mec="black", label="paper")
        self._ticks(axis, rows)

    def _ticks(self, axis: Any, rows: list[Row]) -> None:
        """A tick at each value that was tried."""
        places = sorted({row.changes[self.over] for row in rows})
        axis.set_xscale("log" if self.log else "linear")
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.set_xlabel(self.name)


def _curve(axis: Any, values: list[tuple[float, Value]], look: dict[str, Any]) -> None:
    """Ours with intervals; a cross on what must not be read as a plain number."""
    ours = [(x, v.ours, v.interval or (v.ours, v.ours), v.marks) for x, v in values if v.ours is not None]
    ours.sort(key=lambda point: point[0])
    places, heights = [x for x, *_ in ours], [y for _, y, *_ in ours]
    below = [max(0.0, y - low) for _, y, (low, _), _ in ours]
    above = [max(0.0, high - y) for _, y, (_, high), _ in ours]
    axis.errorbar(places, heights, [below, above], ls="-", capsize=2, elinewidth=0.8, **look)
    marked = [(x, y) for x, y, _, marks in ours if marks]
    axis.plot([x for x, _ in marked], [y for _, y in marked], "kx", ms=7, zorder=5)
