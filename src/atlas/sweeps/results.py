"""The results of a sweep: its table, its figure and its best trial as a preset."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from optuna.trial import FrozenTrial

from atlas.config import ConfigDict, merge, overridden
from atlas.errors import UsageError
from atlas.evaluation import Score
from atlas.files import write_atomic
from atlas.reports import plots
from atlas.reports.tables import Cell, Table
from atlas.sweeps.queue import OUTCOME, newest
from atlas.sweeps.study import Sweep
from atlas.training import RunConfig
from atlas.training.settings import REGISTRIES

DONE, PRUNED, FAILED = "done", "pruned", "failed"
COLUMNS = 4
"""Panels side by side."""
BEST: Any = {"color": "black", "marker": "*", "markersize": 7, "linestyle": "", "zorder": 3}
SYMBOLS = {"method.alpha": "α", "method.beta": "β"}
"""The paper's names."""


@dataclass(frozen=True)
class TrialResult:
    """How the trial of a slot ended. Accuracies are of the best epoch, on the validation images."""

    slot: int
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

    def score_of(self, share: float | None) -> Score | None:
        """An accuracy of this trial with its n."""
        return None if share is None else Score(round(share * self.n), self.n)

    def plain(self) -> dict[str, Any]:
        """What is stored with the trial, which has its slot and values."""
        return {key: value for key, value in asdict(self).items() if key not in ("slot", "values")}


def read_results(trials: Sequence[FrozenTrial]) -> list[TrialResult]:
    """All results so far: done trials by their score, then pruned ones, then failed ones."""
    found = [
        TrialResult(slot, trial.params, **trial.user_attrs[OUTCOME])
        for slot, trial in newest(trials).items()
        if trial.state.is_finished() and OUTCOME in trial.user_attrs
    ]

    def rank(result: TrialResult) -> tuple[int, float, int]:
        value = result.score if result.score is not None else result.robust
        return (DONE, PRUNED, FAILED).index(result.state), -(value or 0.0), result.slot

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
    top = best(found)
    if top is not None:
        config = RunConfig.of(overridden(sweep.base, top.values.items(), REGISTRIES))
        comment = f"Trial {top.slot + 1} of {total}: {top.score:.2%} under {sweep.score_label}"
        comment += "" if len(found) == total else f"; {len(found)} of {total} trials have ended so far"
        texts["best.toml"] = as_toml(config, sweep.name, sweep.preset, comment)
    draw(found, sweep, folder / "figure")
    for name, text in texts.items():
        write_atomic(folder / name, text.encode())


def as_table(found: Sequence[TrialResult], sweep: Sweep, total: int) -> Table:
    """Each trial that has ended with its parameters, best first."""
    columns = ["trial", "state", *sweep.space, f"score ({sweep.score_label})", "clean", "robust"]
    columns += ["best epoch", "epochs", "seconds", "config", "note"]
    top = best(found)
    return Table.of(
        f"{sweep.name}: {len(found)} of {total} trials, validation accuracy in % with 95% intervals",
        columns,
        [_cells(result, sweep, result is top) for result in found],
        notes=tuple(
            f"trials are scored by {key} too: scores with different values of it cannot be compared"
            for key in sweep.measures
        ),
    )


def _cells(result: TrialResult, sweep: Sweep, is_best: bool) -> list[Cell | str]:
    def accuracy(share: float | None, bold: bool = False) -> Cell | str:
        score = result.score_of(share)
        return "" if score is None else Cell.of(score, best=bold)

    values = [result.values.get(key, "") for key in sweep.space]
    return [
        Cell.number(result.slot + 1, "{:.0f}"),
        result.state,
        *(Cell.number(value, "{:.4g}") if _numeric([value]) else str(value) for value in values),
        accuracy(result.score, is_best),
        accuracy(result.clean),
        accuracy(result.robust),
        "" if result.best_epoch is None else Cell.number(result.best_epoch, "{:.0f}"),
        Cell.number(result.epochs, "{:.0f}"),
        Cell.number(result.seconds),
        result.config,
        result.note,
    ]


def as_toml(config: RunConfig, name: str, preset: ConfigDict, comment: str) -> str:
    """The configuration as a preset, which extends the base if that is a preset by name.

    name, preset: what the sweep was given, and its table without `--set`.
    """
    # A file can extend only files of its own folder, and this one is written to the sweep's.
    if not name.endswith(".toml"):
        with suppress(UsageError):  # a preset may lack what `--set` has given
            lines = _changes(RunConfig.of(preset).table(), config.table())
            # A table that replaces another of the base may lack some of its keys: then extending adds them.
            changes = tomllib.loads("\n".join(lines))
            if RunConfig.of(merge(preset, changes, REGISTRIES)) == config:
                return "\n".join([f"# {comment}", f"extends = {json.dumps(name)}", "", *lines]) + "\n"
    return "\n".join([f"# {comment}", *_changes({}, config.table())]) + "\n"


def _changes(base: Mapping[str, Any], table: Mapping[str, Any], where: str = "") -> list[str]:
    """Lines of TOML with dotted keys for what differs from the base; its values are written like JSON's."""
    lines = []
    for key, value in table.items():
        below = base.get(key)
        if isinstance(value, dict):
            lines += _changes(below if isinstance(below, dict) else {}, value, f"{where}{key}.")
        elif value is not None and (key not in base or below != value):
            lines.append(f"{where}{key} = {json.dumps(value, ensure_ascii=False)}")
    return lines


def draw(found: Sequence[TrialResult], sweep: Sweep, path: Path) -> None:
    """Write the figure of all trials that are done; nothing if none is.

    A grid of two parameters is drawn as in App. F.3: a panel for each value of the one with fewer, and lines
    over the other. Any other sweep has a panel for each parameter: a line where there is only one, else
    points.
    """
    done = [row for row in found if row.state == DONE]
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
    """Some results against one parameter."""

    key: str
    rows: Sequence[TrialResult]
    lines: bool
    title: str = ""

    def draw(self, ax: Axes, sweep: Sweep, top: TrialResult | None) -> None:
        values = [row.values[self.key] for row in self.rows]
        positions = _positions(values)
        scored = "robust" if sweep.score is None else f"robust ({sweep.score_label})"
        kinds = {"clean": [row.clean for row in self.rows]}
        kinds[scored] = [row.score for row in self.rows]
        for (label, shares), marker in zip(kinds.items(), "os", strict=True):
            self._mark(ax, positions, shares, plots.label(label), marker)
        if top is not None and top in self.rows:
            position, score = positions[self.rows.index(top)], top.score or 0.0
            ax.plot([position], [100 * score], **BEST)
        ax.set_xlabel(plots.label(names(sweep.space)[self.key]))
        ax.set_title(plots.label(self.title))
        _scale(ax, values, positions, log=getattr(sweep.space[self.key], "log", False))
        if self.lines:
            ax.set_xticks(sorted(set(positions)), [plots.label(short(value)) for value in _distinct(values)])
            ax.minorticks_off()

    def _mark(self, ax: Axes, positions: list[float], shares: list[Any], label: str, marker: str) -> None:
        scores = [row.score_of(share) for row, share in zip(self.rows, shares, strict=True)]
        known = [(x, score) for x, score in zip(positions, scores, strict=True) if score is not None]
        known.sort(key=lambda pair: pair[0])
        x, y = [position for position, _ in known], [100 * score.rate for _, score in known]
        ends = [score.interval for _, score in known]
        low = [max(0.0, rate - 100 * end[0]) for rate, end in zip(y, ends, strict=True)]
        high = [max(0.0, 100 * end[1] - rate) for rate, end in zip(y, ends, strict=True)]
        if self.lines:
            ax.errorbar(x, y, [low, high], fmt=f"{marker}-", label=label, elinewidth=0.6, capsize=1.5)
        else:
            ax.plot(x, y, marker, label=label)


def _panels(done: Sequence[TrialResult], sweep: Sweep) -> list[Panel]:
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


def _positions(values: Sequence[Any]) -> list[float]:
    """The position of each value on the axis: numbers as they are, words in order."""
    if _numeric(values):
        return [float(value) for value in values]
    order = _distinct(values)
    return [float(order.index(value)) for value in values]


def _scale(ax: Axes, values: Sequence[Any], positions: Sequence[float], log: bool) -> None:
    if not _numeric(values):
        order = _distinct(values)
        ax.set_xticks(range(len(order)), [plots.label(str(value)) for value in order])
        ax.set_xlim(-0.5, len(order) - 0.5)
    elif log or (min(positions) > 0 and max(positions) >= 10 * min(positions)):
        ax.set_xscale("log")
