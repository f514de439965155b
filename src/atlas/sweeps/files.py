"""The files of a sweep: its table, its figure and its best trial as a preset."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from atlas.config import ConfigDict, merge, overridden
from atlas.errors import UsageError
from atlas.files import write_atomic
from atlas.reports import plots
from atlas.reports.tables import Cell, Table
from atlas.sweeps.study import Sweep
from atlas.sweeps.trial import DONE, Place, Row, best
from atlas.training import RunConfig
from atlas.training.settings import REGISTRIES


def write_files(found: Sequence[Row], sweep: Sweep, place: Place, total: int) -> None:
    """Write all of them anew; each is whole at every moment."""
    table = as_table(found, sweep, total)
    texts = {
        "table.md": table.markdown(),
        "table.csv": table.csv(),
        "table.json": json.dumps(table.plain(), indent=2) + "\n",
    }
    top = best(found)
    if top is not None:
        config = RunConfig.of(overridden(sweep.base, top.values.items(), REGISTRIES))
        comment = f"Trial {top.slot + 1} of {total}: {top.outcome.score:.2%} under {sweep.score_label}"
        comment += "" if len(found) == total else f"; {len(found)} of {total} trials have ended so far"
        texts["best.toml"] = as_toml(config, sweep.name, sweep.preset, comment)
    draw(found, sweep, place.folder / "figure")
    for name, text in texts.items():
        write_atomic(place.folder / name, text.encode())


def as_table(found: Sequence[Row], sweep: Sweep, total: int) -> Table:
    """Each trial that has ended with its parameters, best first."""
    columns = ["trial", "state", *sweep.space, f"score ({sweep.score_label})", "clean", "robust"]
    columns += ["best epoch", "epochs", "seconds", "config", "note"]
    top = best(found)
    notes = [
        f"trials are scored by {key} too: of other values of it the scores cannot be compared"
        for key in sweep.measures
    ]
    return Table.of(
        f"{sweep.name}: {len(found)} of {total} trials, validation accuracy in % with 95% intervals",
        columns,
        [_cells(row, sweep, row is top) for row in found],
        notes=tuple(notes),
    )


def _cells(row: Row, sweep: Sweep, is_best: bool) -> list[Cell | str]:
    outcome = row.outcome
    values = [row.values.get(key, "") for key in sweep.space]
    return [
        Cell.number(row.slot + 1, "{:.0f}"),
        outcome.state,
        *(_setting(value) for value in values),
        _accuracy(row, outcome.score, is_best),
        _accuracy(row, outcome.clean),
        _accuracy(row, outcome.robust),
        "" if outcome.best_epoch is None else Cell.number(outcome.best_epoch, "{:.0f}"),
        Cell.number(outcome.epochs, "{:.0f}"),
        Cell.number(outcome.seconds),
        outcome.config,
        outcome.note,
    ]


def _setting(value: Any) -> Cell | str:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell.number(value, "{:.4g}") if numeric else str(value)


def _accuracy(row: Row, share: float | None, is_best: bool = False) -> Cell | str:
    score = row.outcome.score_of(share)
    return "" if score is None else Cell.of(score, best=is_best)


def as_toml(config: RunConfig, name: str, preset: ConfigDict, comment: str) -> str:
    """The configuration as a preset that extends the base where it is one by name.

    name, preset: what the sweep was given, and the table that it stands for, without `--set`.
    """
    # Only files of its own folder can extend a file, and this one is written to the sweep's.
    if not name.endswith(".toml"):
        with suppress(UsageError):  # a preset may lack what `--set` has given
            lines = _changes(RunConfig.of(preset).table(), config.table())
            text = f"# {comment}\nextends = {_value(name)}\n\n" + "\n".join(lines) + "\n"
            if _gives(config, preset, text):
                return text
    return f"# {comment}\n" + "\n".join(_changes({}, config.table())) + "\n"


def _gives(config: RunConfig, preset: ConfigDict, text: str) -> bool:
    """Whether the text on top of the preset is the configuration; a table given anew may lack its keys."""
    changes = tomllib.loads(text)
    del changes["extends"]
    return RunConfig.of(merge(preset, changes, REGISTRIES)) == config


def _changes(base: Mapping[str, Any], table: Mapping[str, Any], where: str = "") -> list[str]:
    """Lines of TOML with dotted keys, for what the table has otherwise than the base."""
    lines = []
    for key, value in table.items():
        below = base.get(key)
        if isinstance(value, dict):
            lines += _changes(below if isinstance(below, dict) else {}, value, f"{where}{key}.")
        elif value is not None and (key not in base or below != value):
            lines.append(f"{where}{key} = {_value(value)}")
    return lines


def _value(value: Any) -> str:
    """As TOML, whose numbers, words and lists are JSON's."""
    return json.dumps(value, ensure_ascii=False)


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
