"""The curves of a report as static plots for papers: PDF, SVG and PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, ScalarFormatter

from atlas.evaluation import Score
from atlas.reports import plots
from atlas.reports.charts import MOST_BANDS, valid
from atlas.reports.collect import Run
from atlas.reports.quick_attack import STEPS, Study

MOST_INSIDE = 4
WIDE = 1.3
"""A legend of more names, or of one of more inches, stands below the plot, where it hides no curve."""
MARKERS = "osD^vPX"
"""Beside the colours, for print in gray."""
LINE = 0.15
"""Inches that a line of a legend takes."""
HANDLE, GAP = 0.35, 0.2
"""Inches before a name in a legend, and between its columns."""


def save_figures(folder: Path, runs: Sequence[Run], groups: Sequence[Mapping[str, Study]]) -> list[Path]:
    """Write every plot that there are numbers for; the files written."""
    looks = _looks([run.name for run in runs])
    made: dict[str, Figure] = {}
    for number, group in enumerate(map(valid, groups), 1):
        end = f"-{number}" if len(groups) > 1 else ""
        if group:
            made |= {f"radius{end}": radius(group, looks), f"steps{end}": steps(group, looks)}
    trained = [run for run in runs if run.epochs]
    if trained:
        made["training"] = training(trained, looks)
    return [path for name, figure in made.items() for path in plots.save(figure, folder / name)]


def _looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Marker, colour, line and label of each; what is the same after shortening has its number."""
    with plots.style():
        short = [plots.shortened(name) for name in names]
    told = [f"{text} ({k})" if short.count(text) > 1 else text for k, text in enumerate(short, 1)]
    return {name: {**_look(k), "label": plots.label(told[k])} for k, name in enumerate(names)}


def _look(index: int) -> dict[str, Any]:
    marker, colour = MARKERS[index % len(MARKERS)], plots.PALETTE[index % len(plots.PALETTE)]
    return {"marker": marker, "color": colour, "linestyle": "-" if index < len(plots.PALETTE) else "--"}


def radius(studies: Mapping[str, Study], looks: Mapping[str, Mapping[str, Any]]) -> Figure:
    with plots.style():
        figure, axes = plots.subplots()
        for name, study in studies.items():
            _curve(axes, study.by_radius, looks[name], banded=len(studies) <= MOST_BANDS)
        axes.axvline(next(iter(studies.values())).threat.eps, color="0.5", lw=0.8, ls=":")
        axes.set(xlabel="ε", ylabel="accuracy under attack (%)", ylim=(0, 100), xlim=(0, None))
        _legend(figure, axes)
    return figure


def steps(studies: Mapping[str, Study], looks: Mapping[str, Mapping[str, Any]]) -> Figure:
    with plots.style():
        figure, axes = plots.subplots()
        for name, study in studies.items():
            _curve(axes, study.by_steps, looks[name], banded=len(studies) <= MOST_BANDS)
        axes.set_xscale("log")
        axes.set_xticks(STEPS)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="steps of the attack", ylabel="accuracy under attack (%)", ylim=(0, 100))
        _legend(figure, axes)
    return figure


def _curve(
    axes: Any, scores: Sequence[tuple[float, Score]], look: Mapping[str, Any], *, banded: bool
) -> None:
    x = [at for at, _ in scores]
    low, high = ([100 * score.interval[end] for _, score in scores] for end in (0, 1))
    axes.plot(x, [100 * score.rate for _, score in scores], **look)
    if banded:
        axes.fill_between(x, low, high, color=look["color"], alpha=0.15, lw=0)


def training(runs: Sequence[Run], looks: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Validation robust accuracy and squared Jacobian norm by epoch, a collapse marked by a cross."""
    with plots.style():
        figure, (left, right) = plots.subplots(1, 2, width=plots.DOUBLE)
        for run in runs:
            look = {**looks[run.name], "marker": ""}
            epochs = [epoch.number for epoch in run.epochs]
            left.plot(epochs, [100 * e.robust for e in run.epochs], **look)
            right.plot(epochs, [e.jacobian for e in run.epochs], **look)
            if run.collapse:
                cross = {
                    "marker": "x",
                    "color": "#b3261e",
                    "markersize": 7,
                    "markeredgewidth": 2,
                    "zorder": 5,
                }
                left.plot([run.collapse.number], [100 * run.collapse.robust], **cross)
                right.plot([run.collapse.number], [run.collapse.jacobian], **cross)
        left.set(xlabel="epoch", ylabel="validation robust accuracy (%)", ylim=(0, 100))
        right.set(xlabel="epoch", ylabel="squared Jacobian norm", yscale="log")
        for axes in (left, right):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(figure, left)
    return figure


def _legend(figure: Figure, axes: Any) -> None:
    """Within the axes, or below them in a figure that is made higher for it."""
    handles, labels = axes.get_legend_handles_labels()
    widest = max(map(plots.text_width, labels), default=0.0)
    if len(labels) <= MOST_INSIDE and widest <= WIDE:
        axes.legend()
        return
    columns = max(1, int(figure.get_figwidth() / (HANDLE + widest + GAP)))
    lines = math.ceil(len(labels) / columns)
    figure.set_figheight(figure.get_figheight() + LINE * (lines + 1))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, columnspacing=1.5)
