"""The artefacts of the paper by name: those of `artefacts.toml`, and two figures with code of their own."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from itertools import product
from typing import Any

from atlas_paper import collapse, loss_curves, paper
from atlas_paper.artefact import Artefact, ModelRow
from atlas_paper.figures import dots, lines
from atlas_paper.results import paired_tests


def _artefact(name: str, table: Mapping[str, Any]) -> Artefact:
    tasks, columns, over = table["tasks"], table["columns"], table.get("over")
    if not isinstance(columns, dict):
        columns = dict.fromkeys(tasks, columns)
    prefix = "{task}-" if len(tasks) > 1 else ""
    rows = [
        ModelRow(task, preset, key=f"{prefix.format(task=task)}{preset}")
        for task in tasks
        for preset in table.get("rows", ())
    ]
    for sweep in table.get("sweeps", ()):
        rows += [row for task in tasks for row in _points(task, **sweep)]
    return Artefact(
        name,
        table["of"],
        tuple(rows),
        {task: tuple(names) for task, names in columns.items()},
        figure=partial(lines, over=over) if over else dots,
        tables={
            file: partial(paired_tests, one=one, others=others)
            for file, (one, *others) in table.get("paired", {}).items()
        },
    )


def _points(
    task: str, preset: str, values: Mapping[str, Sequence[float]], of_paper: Sequence[float] = ()
) -> Iterator[ModelRow]:
    """The points of a sweep; at scale smoke its corners only."""
    for point in product(*values.values()):
        changes = dict(zip(values, point, strict=True))
        words = sorted(f"{key.rpartition('.')[2]}={value:g}" for key, value in changes.items())
        yield ModelRow(
            task,
            preset,
            changes,
            key="-".join([task, preset.removesuffix("-1"), *words]),
            label=", ".join([paper.label(preset), *words]),
            paper=preset if list(point) == list(of_paper) else "",
            smoke=all(
                value in (grid[0], grid[-1]) for value, grid in zip(point, values.values(), strict=True)
            ),
        )


_TABLES = tomllib.loads((resources.files("atlas_paper") / "artefacts.toml").read_text("utf-8"))
ARTEFACTS: dict[str, Artefact] = {name: _artefact(name, table) for name, table in _TABLES.items()}
ARTEFACTS |= {each.name: each for each in (loss_curves.ARTEFACT, collapse.ARTEFACT)}
