"""Computing and sending against the number of ranks: where their lines cross, the network is the limit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from atlas.bench.cost_report import GIGABIT
from atlas.bench.drawing import GRAY, write_figure
from atlas.report import plots


def draw_cost(report: Mapping[str, Any], path: Path) -> None:
    """Write the figure, a panel for each task; the kind is that of the path's ending."""
    tasks = report["tasks"]
    with plots.style():
        figure, axes = plots.subplots(1, len(tasks), width=plots.DOUBLE, height=2.9, squeeze=False)
        for task, ax in zip(tasks, axes.flat, strict=True):
            _panel(ax, task, report)
        axes[0, 0].set_ylabel("ms a step")
        handles = [*axes[0, 0].get_legend_handles_labels()[0]]
        handles.append(Line2D([], [], color="black", linestyle=":", label="its last backward pass"))
        handles.append(Line2D([], [], color=GRAY, label="sending"))
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
        write_figure(figure, path)


def _panel(ax: Axes, task: Mapping[str, Any], report: Mapping[str, Any]) -> None:
    drawn: list[list[float]] = []
    for number, method in enumerate(task["methods"]):
        ranks = [point["ranks"] for point in method["curve"]]
        colour = plots.PALETTE[number % len(plots.PALETTE)]
        ax.plot(ranks, _ms(method, "computing"), "o-", color=colour, label=plots.label(method["method"]))
        if _ms(method, "backward") not in drawn:  # as long for any number of attack steps
            drawn.append(_ms(method, "backward"))
            ax.plot(ranks, drawn[-1], ":", color=colour)
    for number, link in enumerate(report["links"]):
        sending = [1e3 * point["sending"][number] for point in task["methods"][0]["curve"]]
        ax.plot(ranks, sending, color=GRAY)
        name = f"{link['bandwidth'] / GIGABIT:g} Gbit/s"
        ax.annotate(
            name,
            (ranks[-1], sending[-1]),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=GRAY,
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(ranks, [str(n) for n in ranks])
    ax.set_xlabel(f"ranks that share {task['batch']} images")
    ax.set_title(plots.label(f"{task['title']}, {task['parameters'] / 1e6:.0f} million weights"))


def _ms(method: Mapping[str, Any], what: str) -> list[float]:
    return [1e3 * point[what] for point in method["curve"]]
