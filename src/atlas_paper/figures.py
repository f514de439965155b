"""Figures that several artefacts share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from atlas.reports import plots
from atlas_paper.artefact import ModelRow
from atlas_paper.paper import TIME
from atlas_paper.results import CellResult, Results
from atlas_paper.write import filled_columns, title

PANELS = (4, 3)
"""Panels per line; the first where both leave as few places empty."""
PAPER, OURS = plots.PALETTE[6], plots.PALETTE[0]
SPAN, TICKS = (-4, 104), (0, 25, 50, 75, 100)
"""Of accuracies in %, the same in all panels, with a margin for marks at either end."""
MARKERS = ("o", "s", "^", "v")


def dots(results: Results) -> Figure:
    """A panel for each column, a line for each row: the paper's number hollow, ours with its interval.

    A column without any number has no panel, unless that holds for all.
    """
    every = [c for c in results.request.artefact.columns if c != TIME]
    columns = [c for c in filled_columns(results) if c != TIME] or every
    rows = results.rows
    down, across = _grid(len(columns))
    names = [plots.label(results.name(row)) for row in rows]
    with plots.style():
        height = down * (0.5 + 0.17 * len(rows)) + 0.5
        figure, axes = plots.subplots(
            down, across, width=plots.DOUBLE, height=height, sharex=True, sharey=True, squeeze=False
        )
        panels, empty = list(axes.flat)[: len(columns)], list(axes.flat)[len(columns) :]
        for axis, column in zip(panels, columns, strict=True):
            _panel(axis, [results.cell(row, column) for row in rows])
            axis.set_title(plots.label(column))
            axis.set_xlim(*SPAN)
            axis.set_xticks(TICKS)
            axis.set_yticks(range(len(rows)), names)
            axis.set_ylim(len(rows) - 0.5, -0.5)
        for axis in panels[-across:]:
            axis.tick_params(labelbottom=True)  # also above an empty place
            axis.set_xlabel("accuracy (%)")
        _legend(figure, panels, empty)
        figure.suptitle(plots.label(title(results)), fontsize=8)
    return figure


def _grid(count: int) -> tuple[int, int]:
    """Lines of panels, and panels per line, with as few empty places as possible."""
    shapes = [(-(-count // across), min(across, count)) for across in PANELS]
    return min(shapes, key=lambda shape: shape[0] * shape[1])


def _panel(axis: Any, cells: list[CellResult]) -> None:
    theirs = [(cell.paper, k) for k, cell in enumerate(cells) if cell.paper is not None]
    axis.plot([x for x, _ in theirs], [k for _, k in theirs], "D", mfc="none", mec=PAPER, zorder=3)
    for k, cell in enumerate(cells):
        if cell.ours is not None:
            axis.plot(cell.interval or (cell.ours, cell.ours), [k, k], color=OURS, lw=1)
            axis.plot([cell.ours], [k], "x" if cell.marks else "o", color=OURS)


def _legend(figure: Figure, panels: list[Any], empty: list[Any]) -> None:
    """Of the marks that are drawn: in the first empty place, or below all where there is none."""
    drawn = {line.get_marker() for axis in panels for line in axis.lines if len(line.get_xdata())}
    looks: dict[str, dict[str, Any]] = {
        "D": {"label": "paper", "mfc": "none", "mec": PAPER},
        "o": {"label": "ours, 95% interval"},
        "x": {"label": "ours, see the notes"},
    }
    owner = (empty or panels)[0]
    handles = [owner.plot([], [], m, color=OURS, **look)[0] for m, look in looks.items() if m in drawn]
    for axis in empty:
        axis.set_axis_off()
    if empty:
        owner.legend(handles=handles, loc="center")
    else:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


@dataclass(frozen=True)
class Lines:
    """The figure of a sweep: accuracy over a setting."""

    over: str
    """The setting along the axis, by its dotted key."""
    name: str
    curves: Mapping[str, tuple[str, Mapping[str, Any]]]
    """By their names in the legend: the rows of a preset with these changes."""
    log: bool = True

    def __call__(self, results: Results) -> Figure:
        tasks = list(dict.fromkeys(row.task for row in results.rows))
        with plots.style():
            figure, axes = plots.subplots(len(tasks), 2, width=plots.DOUBLE * 0.8, squeeze=False)
            for line, task in zip(axes, tasks, strict=True):
                rows = [row for row in results.rows if row.task == task]
                for axis, column in zip(line, results.cells[rows[0].key], strict=True):
                    self._panel(axis, results, rows, column)
                    axis.set_title(plots.label(f"{task}: {column}"))
                    axis.set_ylabel("accuracy (%)")
            handles, labels = axes[0][0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
            figure.suptitle(plots.label(title(results)), fontsize=8)
        return figure

    def _panel(self, axis: Any, results: Results, rows: list[ModelRow], column: str) -> None:
        known = False
        for k, (name, (preset, changes)) in enumerate(self.curves.items()):
            drawn = [r for r in rows if r.preset == preset and changes.items() <= r.changes.items()]
            cells = sorted(
                ((row.changes[self.over], results.cells[row.key][column]) for row in drawn),
                key=lambda point: point[0],
            )
            if not cells:
                continue
            _curve(axis, cells, {"color": plots.PALETTE[k], "marker": MARKERS[k], "label": name})
            theirs = [(x, cell.paper) for x, cell in cells if cell.paper is not None]
            known = known or bool(theirs)
            axis.plot([x for x, _ in theirs], [y for _, y in theirs], "D", mfc="none", mec=plots.PALETTE[k])
        if known:
            axis.plot([], [], "D", mfc="none", mec="black", label="paper")
        ticks = sorted({row.changes[self.over] for row in rows})
        axis.set_xscale("log" if self.log else "linear")
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_xlabel(self.name)


def _curve(axis: Any, cells: list[tuple[float, CellResult]], look: dict[str, Any]) -> None:
    """Ours with intervals; a cross on what must not be read as a plain number."""
    ours = [(x, c.ours, c.interval or (c.ours, c.ours), c.marks) for x, c in cells if c.ours is not None]
    below = [max(0.0, y - low) for _, y, (low, _), _ in ours]
    above = [max(0.0, high - y) for _, y, (_, high), _ in ours]
    x, heights = [x for x, *_ in ours], [y for _, y, *_ in ours]
    axis.errorbar(x, heights, [below, above], ls="-", capsize=2, elinewidth=0.8, **look)
    marked = [(x, y) for x, y, _, marks in ours if marks]
    axis.plot([x for x, _ in marked], [y for _, y in marked], "kx", ms=7, zorder=5)
