"""Clean and robust accuracy against the parameters of a sweep (App. F)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from atlas.report import plots
from atlas.sweep.outcome import DONE, Row, best
from atlas.sweep.study import Sweep

COLUMNS = 4
"""Panels side by side."""
BEST: Any = {"color": "black", "marker": "*", "markersize": 7, "linestyle": "", "zorder": 3}
SYMBOLS = {"method.alpha": "α", "method.beta": "β"}
"""The paper's names."""


def draw(found: Sequence[Row], sweep: Sweep, path: Path) -> None:
    """Write the figure of all trials that came to their end; nothing where none did.

    A grid of two parameters is drawn as in App. F.3: a panel for each value of the one with fewer, and lines
    over the other. Any other sweep has a panel for each parameter: a line where there is only one, else
    points.
    """
    done = [row for row in found if row.outcome.state == DONE]
    if not done:
        return
    panels = _panels(done, sweep)
    rows = math.ceil(len(panels) / COLUMNS)
    columns = math.ceil(len(panels) / rows)
    width = plots.SINGLE if columns == 1 else plots.DOUBLE
    with plots.style():
        height = (0.72 * width if columns == 1 else 1.9) * rows + 0.35
        figure, axes = plots.subplots(rows, columns, width=width, height=height, sharey=True, squeeze=False)
        for panel, ax in zip(panels, axes.flat, strict=False):
            panel.draw(ax, sweep, best(found))
        for ax in axes.flat[len(panels) :]:
            ax.set_visible(False)
        for ax in axes[:, 0]:
            ax.set_ylabel("validation accuracy (%)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        handles.append(Line2D([], [], **BEST))
        figure.legend(handles, [*labels, "best"], loc="outside upper center", ncols=3)
        plots.save(figure, path)


@dataclass(frozen=True)
class Panel:
    """Some rows against one parameter."""

    key: str
    rows: Sequence[Row]
    lines: bool
    title: str = ""

    def draw(self, ax: Axes, sweep: Sweep, top: Row | None) -> None:
        values = [row.values[self.key] for row in self.rows]
        places = _places(values)
        scored = "robust" if sweep.score is None else f"robust ({sweep.score_label})"
        kinds = {"clean": [row.outcome.clean for row in self.rows]}
        kinds[scored] = [row.outcome.score for row in self.rows]
        for (label, shares), marker in zip(kinds.items(), "os", strict=True):
            self._mark(ax, places, shares, plots.label(label), marker)
        if top is not None and top in self.rows:
            place, score = places[self.rows.index(top)], top.outcome.score or 0.0
            ax.plot([place], [100 * score], **BEST)
        ax.set_xlabel(plots.label(names(sweep.space)[self.key]))
        ax.set_title(plots.label(self.title))
        _scale(ax, values, places, log=getattr(sweep.space[self.key], "log", False))
        if self.lines:
            ax.set_xticks(sorted(set(places)), [plots.label(short(value)) for value in _distinct(values)])
            ax.minorticks_off()

    def _mark(self, ax: Axes, places: list[float], shares: list[Any], label: str, marker: str) -> None:
        scores = [row.outcome.score_of(share) for row, share in zip(self.rows, shares, strict=True)]
        known = [(x, score) for x, score in zip(places, scores, strict=True) if score is not None]
        known.sort(key=lambda pair: pair[0])
        x, y = [place for place, _ in known], [100 * score.rate for _, score in known]
        ends = [score.interval for _, score in known]
        low = [max(0.0, rate - 100 * end[0]) for rate, end in zip(y, ends, strict=True)]
        high = [max(0.0, 100 * end[1] - rate) for rate, end in zip(y, ends, strict=True)]
        if self.lines:
            ax.errorbar(x, y, [low, high], fmt=f"{marker}-", label=label, elinewidth=0.6, capsize=1.5)
        else:
            ax.plot(x, y, marker, label=label)


def _panels(done: Sequence[Row], sweep: Sweep) -> list[Panel]:
    keys = list(sweep.space)
    if not (sweep.grid and len(keys) == 2):
        return [Panel(key, done, lines=sweep.grid and len(keys) == 1) for key in keys]
    many = {key: _distinct(row.values[key] for row in done) for key in keys}
    few, other = sorted(keys, key=lambda key: len(many[key]))
    name = names(keys)[few]
    return [
        Panel(other, [r for r in done if r.values[few] == value], True, f"{name} = {short(value)}")
        for value in many[few]
    ]


def names(keys: Iterable[str]) -> dict[str, str]:
    """Short names of the parameters: the paper's, or the last part of the key where that is enough."""
    keys = list(keys)
    ends = [key.rpartition(".")[2] for key in keys]
    return {k: SYMBOLS.get(k, e if ends.count(e) == 1 else k) for k, e in zip(keys, ends, strict=True)}


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _distinct(values: Iterable[Any]) -> list[Any]:
    kept = list(dict.fromkeys(values))
    return sorted(kept) if _numeric(kept) else kept


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _places(values: Sequence[Any]) -> list[float]:
    """Where each value stands on the axis: numbers as they are, words one after the other."""
    if _numeric(values):
        return [float(value) for value in values]
    order = _distinct(values)
    return [float(order.index(value)) for value in values]


def _scale(ax: Axes, values: Sequence[Any], places: Sequence[float], log: bool) -> None:
    if not _numeric(values):
        order = _distinct(values)
        ax.set_xticks(range(len(order)), [plots.label(str(value)) for value in order])
        ax.set_xlim(-0.5, len(order) - 0.5)
    elif log or (min(places) > 0 and max(places) >= 10 * min(places)):
        ax.set_xscale("log")
