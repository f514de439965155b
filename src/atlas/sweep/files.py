"""The files of a sweep: its table, its figure and its best trial as a preset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from atlas.config import overridden
from atlas.disk import write_atomic
from atlas.report.tables import Cell, Table
from atlas.sweep.best import as_toml
from atlas.sweep.figure import draw
from atlas.sweep.outcome import Row, best
from atlas.sweep.study import Sweep
from atlas.sweep.trial import Place
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
