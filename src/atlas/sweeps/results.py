"""The results of a sweep: its table, its figure and its best trial as a preset."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from optuna.trial import FrozenTrial

from atlas.config import overridden
from atlas.evaluation import Score
from atlas.files import write_atomic
from atlas.presets.template import commented
from atlas.reports import plots
from atlas.reports.tables import Cell, Table
from atlas.sweeps.study import Sweep
from atlas.training.settings import REGISTRIES

OUTCOME = "outcome"
"""The attribute of a trial that holds its result."""
DONE, PRUNED, FAILED = "done", "pruned", "failed"
COLUMNS = 4
"""Panels side by side."""
BEST: Any = {"color": "black", "marker": "*", "markersize": 7, "linestyle": "", "zorder": 3}
SYMBOLS = {"method.alpha": "α", "method.beta": "β"}
"""The paper's names."""


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended. Accuracies are of the best epoch, on the validation images."""

    number: int
    """From 0; what is shown counts from 1."""
    values: Mapping[str, Any] = field(hash=False)
    state: str
    """done, pruned or failed."""
    config: str
    """The configuration's hash, as in the run's `config.json`."""
    n: int
    """Validation images."""
    note: str = ""
    clean: float | None = None
    robust: float | None = None
    """Under the preset's validation attack."""
    score: float | None = None
    """What the sweep maximises; only of trials that are done."""
    best_epoch: int | None = None
    epochs: int = 0
    seconds: float = 0.0

    def accuracy(self, name: str) -> Score | None:
        """`clean`, `robust` or `score` with its n."""
        share = getattr(self, name)
        return None if share is None else Score(round(share * self.n), self.n)

    def plain(self) -> dict[str, Any]:
        """What is stored with the trial, which has its number and values."""
        return {key: value for key, value in asdict(self).items() if key not in ("number", "values")}


def read_results(trials: Iterable[FrozenTrial]) -> list[TrialResult]:
    """All results so far: done trials by their score, then pruned ones, then failed ones."""
    found = [
        TrialResult(trial.number, trial.params, **trial.user_attrs[OUTCOME])
        for trial in trials
        if trial.state.is_finished() and OUTCOME in trial.user_attrs
    ]

    def rank(result: TrialResult) -> tuple[int, float, int]:
        value = result.score if result.score is not None else result.robust
        return (DONE, PRUNED, FAILED).index(result.state), -(value or 0.0), result.number

    return sorted(found, key=rank)


def best(found: Sequence[TrialResult]) -> TrialResult | None:
    """The done trial with the highest score."""
    return found[0] if found and found[0].state == DONE else None


def write_results(found: Sequence[TrialResult], sweep: Sweep, folder: Path, total: int) -> None:
    """Write table, figure and best preset; each file is complete at every moment."""
    table = as_table(found, sweep, total)
    texts = {
        "table.md": table.markdown(),
        "table.csv": table.csv(),
        "table.json": json.dumps(table.plain(), indent=2) + "\n",
    }
    if (top := best(found)) is not None:
        head = f"{sweep.name}, trial {top.number + 1} of {total}: {top.score:.2%} under {sweep.score_label}"
        head += "" if len(found) == total else f"; {len(found)} of {total} trials have ended so far"
        texts["best.toml"] = commented(overridden(sweep.base, top.values.items(), REGISTRIES), [head])
    draw(found, sweep, folder / "figure")
    for name, text in texts.items():
        write_atomic(folder / name, text.encode())


def as_table(found: Sequence[TrialResult], sweep: Sweep, total: int) -> Table:
    """Each trial that has ended with its parameters, best first."""
    columns = ["trial", "state", *sweep.space, f"score ({sweep.score_label})", "clean", "robust"]
    columns += ["best epoch", "epochs", "seconds", "config", "note"]

    def accuracy(result: TrialResult, name: str) -> Cell | str:
        shown = result.accuracy(name)
        return "" if shown is None else Cell.of(shown, best=name == "score" and result is best(found))

    rows = [
        [
            Cell.number(result.number + 1, "{:.0f}"),
            result.state,
            *(_value_cell(result.values.get(key, "")) for key in sweep.space),
            *(accuracy(result, name) for name in ("score", "clean", "robust")),
            "" if result.best_epoch is None else Cell.number(result.best_epoch, "{:.0f}"),
            Cell.number(result.epochs, "{:.0f}"),
            Cell.number(result.seconds),
            result.config,
            result.note,
        ]
        for result in found
    ]
    return Table.of(
        f"{sweep.name}: {len(found)} of {total} trials, validation accuracy in % with 95% intervals",
        columns,
        rows,
        notes=tuple(
            f"trials are scored by {key} too: scores with different values of it cannot be compared"
            for key in sweep.measures
        ),
    )


def _value_cell(value: Any) -> Cell | str:
    return Cell.number(value, "{:.4g}") if _is_number(value) else str(value)


def draw(found: Sequence[TrialResult], sweep: Sweep, path: Path) -> None:
    """Write the figure of all trials that are done; nothing if none is.

    A grid of two parameters is drawn as in App. F.3: a panel for each value of the one with fewer, and lines
    over the other. Any other sweep has a panel for each parameter: a line where there is only one, else
    points.
    """
    done = [row for row in found if row.state == DONE]
    if not done:
        return
    keys, shown = list(sweep.space), names(sweep.space)
    lines = sweep.grid and len(keys) <= 2
    panels = [(key, "", done) for key in keys]
    if lines and len(keys) == 2:
        few, other = sorted(keys, key=lambda key: len(_distinct(done, key)))
        panels = [
            (other, f"{shown[few]} = {short(value)}", [row for row in done if row.values[few] == value])
            for value in _distinct(done, few)
        ]
    rows = math.ceil(len(panels) / COLUMNS)
    columns = math.ceil(len(panels) / rows)
    width = plots.SINGLE if columns == 1 else plots.DOUBLE
    with plots.style():
        height = (0.72 * width if columns == 1 else 1.9) * rows + 0.35
        figure, axes = plots.subplots(rows, columns, width=width, height=height, sharey=True, squeeze=False)
        for (key, title, of_panel), ax in zip(panels, axes.flat, strict=False):
            ax.set_title(plots.label(title))
            ax.set_xlabel(plots.label(shown[key]))
            _draw_panel(ax, of_panel, key, sweep, done[0], lines)
        for ax in axes.flat[len(panels) :]:
            ax.set_visible(False)
        for ax in axes[:, 0]:
            ax.set_ylabel("validation accuracy (%)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        handles.append(Line2D([], [], **BEST))
        figure.legend(handles, [*labels, "best"], loc="outside upper center", ncols=3)
        plots.save(figure, path)


def _draw_panel(
    ax: Axes, rows: Sequence[TrialResult], key: str, sweep: Sweep, top: TrialResult, lines: bool
) -> None:
    """Clean and robust accuracy of these trials against one parameter."""
    values = _distinct(rows, key)
    numeric = all(map(_is_number, values))
    at = {value: float(value) if numeric else float(k) for k, value in enumerate(values)}
    rows = sorted(rows, key=lambda row: at[row.values[key]])
    x = [at[row.values[key]] for row in rows]
    robust = "robust" if sweep.score is None else f"robust ({sweep.score_label})"
    for name, label, marker in (("clean", "clean", "o"), ("score", robust, "s")):
        scores = [score for row in rows if (score := row.accuracy(name)) is not None]
        y = np.array([100 * score.rate for score in scores])
        bars = np.abs(100 * np.array([score.interval for score in scores]).T - y)
        bars = bars if lines else None
        ax.errorbar(
            x, y, bars, fmt=marker + "-" * lines, label=plots.label(label), elinewidth=0.6, capsize=1.5
        )
    if top in rows:
        ax.plot([at[top.values[key]]], [100 * (top.score or 0.0)], **BEST)
    if getattr(sweep.space[key], "log", False) or (numeric and min(x) > 0 and max(x) >= 10 * min(x)):
        ax.set_xscale("log")
    if lines or not numeric:
        ax.set_xticks(list(at.values()), [plots.label(short(value)) for value in at])
        ax.minorticks_off()
    if not numeric:
        ax.set_xlim(-0.5, len(at) - 0.5)


def names(keys: Iterable[str]) -> dict[str, str]:
    """Short names of the parameters: the paper's, or the last part of the key where that is enough."""
    keys = list(keys)
    ends = [key.rpartition(".")[2] for key in keys]
    return {k: SYMBOLS.get(k, e if ends.count(e) == 1 else k) for k, e in zip(keys, ends, strict=True)}


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _distinct(rows: Iterable[TrialResult], key: str) -> list[Any]:
    """The values of a parameter: numbers by size, words as they come."""
    values = list(dict.fromkeys(row.values[key] for row in rows))
    return sorted(values) if all(map(_is_number, values)) else values


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
