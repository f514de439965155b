"""Accuracy over a parameter: a line for each of several curves, a panel for each data set and column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from atlas.report import plots
from atlas.reproduce.artefact import Row
from atlas.reproduce.comparison import title
from atlas.reproduce.findings import Findings
from atlas.reproduce.values import Value

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
