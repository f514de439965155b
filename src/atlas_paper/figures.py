"""Figures that several artefacts share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from atlas.reports import plots
from atlas_paper import paper
from atlas_paper.artefact import ModelRow
from atlas_paper.cells import TIME, CellResult
from atlas_paper.results import Results

ACROSS = (4, 3)
"""Panels per line; the first where both leave as few places empty."""
PAPER, OURS = plots.PALETTE[6], plots.PALETTE[0]
SPAN, TICKS = (-4, 104), (0, 25, 50, 75, 100)
"""Of accuracies in %, the same in all panels, with a margin for marks at either end."""
Point = tuple[float, CellResult]


def dots(results: Results) -> Figure:
    """A panel for each column, a line for each row: the paper's number hollow, ours with its interval.

    A column without any number has no panel, unless that holds for all.
    """
    every = results.columns or results.request.artefact.all_columns
    columns, rows = [c for c in every if c != TIME], results.rows
    across = min(len(columns), min(ACROSS, key=lambda number: -len(columns) % number))
    down = -(-len(columns) // across)
    with plots.style():
        height = down * (0.5 + 0.17 * len(rows)) + 0.7
        options: dict[str, Any] = {"sharex": True, "sharey": True, "squeeze": False}
        figure, axes = plots.subplots(down, across, width=plots.DOUBLE, height=height, **options)
        panels = list(axes.flat)[: len(columns)]
        for axis in list(axes.flat)[len(columns) :]:
            axis.set_axis_off()
        for axis, column in zip(panels, columns, strict=True):
            for line, row in enumerate(rows):
                _draw(axis, [(line, results.cell(row, column))], OURS, across=True)
            axis.set(title=plots.label(column), xlim=SPAN, xticks=TICKS, ylim=(len(rows) - 0.5, -0.5))
            axis.set_yticks(range(len(rows)), [plots.label(results.request.row_name(row)) for row in rows])
        for axis in panels[-across:]:
            axis.tick_params(labelbottom=True)  # also above an empty place
            axis.set_xlabel("accuracy (%)")
        _finish(figure, panels, results)
    return figure


def lines(results: Results, over: str) -> Figure:
    """The figure of a sweep: accuracy over a setting, given by its dotted key."""
    tasks = list(dict.fromkeys(row.task for row in results.rows))
    with plots.style():
        figure, axes = plots.subplots(len(tasks), 2, width=plots.DOUBLE * 0.8, squeeze=False)
        for panels, task in zip(axes, tasks, strict=True):
            for axis, column in zip(panels, results.request.artefact.columns[task], strict=True):
                curves: dict[str, list[Point]] = {}
                for row in (row for row in results.rows if row.task == task):
                    point = row.changes[over], results.cell(row, column)
                    curves.setdefault(_curve_name(row, over), []).append(point)
                for k, (name, points) in enumerate(curves.items()):
                    points.sort(key=lambda point: point[0])
                    _draw(axis, points, plots.PALETTE[k], label=name, marker=plots.MARKERS[k])
                ticks = sorted({x for points in curves.values() for x, _ in points})
                axis.set(xscale="log", xlabel=over.rpartition(".")[2], ylabel="accuracy (%)")
                axis.set_title(plots.label(f"{task}: {column}"))
                axis.xaxis.set_minor_locator(NullLocator())
                axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        _finish(figure, list(axes.flat), results)
    return figure


def _curve_name(row: ModelRow, over: str) -> str:
    """The row's label without the setting along the axis."""
    others = [f"{key.rpartition('.')[2]}={v:g}" for key, v in row.changes.items() if key != over]
    return ", ".join([paper.label(row.preset), *others])


def _draw(
    axis: Any,
    points: Sequence[Point],
    colour: str,
    *,
    across: bool = False,
    label: str = "",
    marker: str = "o",
) -> None:
    """Ours with intervals, joined; the paper's hollow; a cross on what must not be read as a plain number."""

    def plot(found: list[tuple[float, float]], *look: str, **more: Any) -> None:
        places, values = [x for x, _ in found], [y for _, y in found]
        axis.plot(*((values, places) if across else (places, values)), *look, **more)

    ours = [(x, cell.ours) for x, cell in points if cell.ours is not None]
    if ours:
        plot(ours, color=colour, marker=marker, label=label or "ours, 95% interval")
    for x, cell in points:
        if cell.interval:
            plot([(x, end) for end in cell.interval], color=colour, lw=0.8)
    theirs = [(x, cell.paper) for x, cell in points if cell.paper is not None]
    if theirs:
        plot(theirs, "D", mfc="none", mec=PAPER if across else colour, label="paper", zorder=3)
    if marked := [(x, cell.ours) for x, cell in points if cell.ours is not None and cell.marks]:
        plot(marked, "kx", ms=7, label="ours, see the notes", zorder=5)


def _finish(figure: Figure, panels: Sequence[Any], results: Results) -> None:
    """The title, and a legend of all that is drawn."""
    found = [pair for axis in panels for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    handles = {label: handle for handle, label in reversed(found)}
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=max(1, len(handles))
    )
    figure.suptitle(plots.label(results.request.title), fontsize=8)
