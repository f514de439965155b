"""The files of an artefact: the comparison with the paper, its other tables, its figure, all numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.evaluation.flags import MEANINGS
from atlas.evaluation.score import WORST_CASE
from atlas.files import write_atomic
from atlas.reports import plots
from atlas.reports.tables import Cell, Table
from atlas_paper.artefact import STRONG, SUITES, ModelRow
from atlas_paper.paper import TIME
from atlas_paper.request import default_network
from atlas_paper.results import NOTHING, Results, SeedResult
from atlas_paper.workspace import commit

RECORDED = ("scale", "version", "seeds", "precision", "attack_dtype", "command")
"""What the JSON file says of the request."""
TableRow = list[Cell | str]
NO_RESULT = "Scale smoke only shows that everything runs: its numbers are no result."
LIST_HEADS = (
    *("row", "data", "network", "column", "paper", "ours", "difference"),
    *("n", "by seed", "status"),
)
PAIRED_HEADS = (
    *("under", "against", "seed", "n", "only the first right", "only the other right"),
    *("difference", "p"),
)
PAIRED_NOTE = (
    "McNemar's exact test, two-sided, on the same images. The difference is that of accuracies, the first "
    "minus the other, in points, with a 95% interval; p is the chance of one as large if both were equally "
    "robust, not corrected for the number of tests. One seed of each says nothing of how much seeds differ."
)


def write(results: Results, folder: Path) -> list[Path]:
    """Tables as Markdown, LaTeX, CSV and JSON, the figure as PDF, SVG and PNG; the paths of all."""
    artefact, more = results.request.artefact, results.tables
    name = artefact.name
    tables = {**({name: side_by_side(results)} if artefact.columns else {}), **more}
    lists = {**more, **{part: make(results) for part, make in artefact.data.items()}}
    files = {f"{name}.md": "\n".join(table.markdown() for table in tables.values())}
    files |= {f"{part}.tex": table.latex() for part, table in tables.items()}
    if artefact.columns:
        files[f"{name}.csv"] = listed(results).csv()
    files |= {f"{part}.csv": table.csv() for part, table in lists.items()}
    parts = {part: table.plain() for part, table in lists.items()}
    files[f"{name}.json"] = json.dumps({**plain(results), "tables": parts}, indent=1) + "\n"
    for file, text in files.items():
        write_atomic(folder / file, text.encode())
    return [*(folder / file for file in files), *plots.save(artefact.figure(results), folder / name)]


def plain(results: Results) -> dict[str, Any]:
    """All numbers, each with its origin."""
    request = results.request
    return {
        "artefact": request.artefact.name,
        "of": request.artefact.of,
        "title": title(results),
        **{name: getattr(request, name) for name in RECORDED},
        "commit": commit(),
        "surrogates": {task: request.surrogate(task).command for task in request.transfer_tasks},
        "missing": results.missing,
        "rows": [_plain_row(results, row) for row in results.rows],
    }


def _plain_row(results: Results, row: ModelRow) -> dict[str, Any]:
    run = results.request.run(row, 0)
    return {
        "key": row.key,
        "label": row.label,
        "task": row.task,
        "network": run.config.model,
        "preset": run.preset,
        "changes": dict(run.changes),
        "runs": [each.status.record() for each in results.seeds[row.key]],
        "cells": {column: cell.plain() for column, cell in results.cells[row.key].items()},
    }


def title(results: Results) -> str:
    """What it is of; on MNIST with the network, which may be one of two."""
    request = results.request
    if not request.of_mnist:
        return f"{request.artefact.of}, scale {request.scale}"
    network = request.network or default_network(request.scale)
    version = {"written": "as written", "tuned": "tuned"}[request.version]
    return f"{request.artefact.of}, {network}, scale {request.scale}, {version}"


def side_by_side(results: Results) -> Table:
    """Three lines per row: the paper's accuracy in %, ours with its interval, the difference in points."""
    columns = filled_columns(results)
    lines = [line for row in results.rows for line in _lines(results, row, columns)]
    heads = ["", "network", "", *(_head(results, column) for column in columns)]
    return Table.of(title(results), heads, lines, notes=tuple(notes(results)))


def filled_columns(results: Results) -> list[str]:
    """Those in which any row has a number, the paper's or ours, or a reason why it has none."""
    filled = {c for cells in results.cells.values() for c, cell in cells.items() if not cell.empty}
    return [column for column in results.request.artefact.columns if column in filled]


def _lines(results: Results, row: ModelRow, columns: Sequence[str]) -> Iterator[TableRow]:
    """The paper's, with the row's name; ours and the difference where any cell has one."""
    cells = [results.cell(row, column) for column in columns]
    network = results.request.run(row, 0).config.model
    yield [results.name(row), network, "paper", *(cell.paper_cell() for cell in cells)]
    lines = {"ours": [c.cell() for c in cells], "difference": [c.difference_cell() for c in cells]}
    for name, line in lines.items():
        if any(cell.text != NOTHING for cell in line):
            yield ["", "", name, *line]


def _head(results: Results, column: str) -> str:
    """The column with its numbers of images."""
    found = {results.cell(row, column).n for row in results.rows}
    counts = " or ".join(f"{n:,}" for n in sorted(n for n in found if n))
    return f"{column} (n = {counts})" if counts else column


def listed(results: Results) -> Table:
    """The same, one line per number, for programs."""
    lines: list[TableRow] = []
    for row in results.rows:
        network = results.request.run(row, 0).config.model
        for column, cell in results.cells[row.key].items():
            ours = Cell("") if cell.ours is None else Cell("", cell.ours, cell.interval)
            theirs, difference = (
                Cell("") if number is None else Cell.number(number, "{:g}")
                for number in (cell.paper, cell.difference)
            )
            by_seed = " ".join(f"{100 * s.rate:.2f}" for s in cell.scores.values() if not s.reasons)
            status = ", ".join([cell.status, *cell.marks, *cell.reasons])
            n = "" if cell.n is None else str(cell.n)
            lines.append([row.key, row.task, network, column, theirs, ours, difference, n, by_seed, status])
    return Table.of(title(results), LIST_HEADS, lines)


def trained_with(results: Results) -> Iterator[str]:
    """What the trainings of an artefact used: network, images, precision."""
    request = results.request
    for task in dict.fromkeys(row.task for row in results.rows):
        runs = [request.run(row, 0).config for row in results.rows if row.task == task]
        held_out = " or ".join(f"{size:,}" for size in sorted({r.training.validation.size for r in runs}))
        yield f"{task}: {request.setting(task).words}. Of the training images {held_out} are for validation."
    if request.precision != "float32":
        timed = ", the time per batch too" if TIME in request.artefact.columns else ""
        yield f"Trained in {request.precision}, with channels last where that is fast{timed}."
    if untuned := [row.label for row in request.scaled_rows if row not in results.rows]:
        yield f"Without tuned settings, and so not here: {', '.join(untuned)}."


def notes(results: Results) -> Iterator[str]:
    """How the table was made, and what it lacks."""
    request = results.request
    if request.scale == "smoke":
        yield NO_RESULT
    yield from trained_with(results)
    if request.seeds > 1:
        ours = f"the mean of {request.seeds} seeds, with a 95% interval for other seeds and other images"
    else:
        ours = "of one seed, with Wilson's 95% interval"
    worst = ""
    if any(results.cell(row, WORST_CASE).ours is not None for row in results.rows):
        worst = f" The worst case is taken image by image over {_worst_of(results)}."
    yield f"Accuracy in %; ours is {ours}, each model at its best validation epoch.{worst}"
    if TIME in filled_columns(results):
        yield _timed(results)
    if request.attack_dtype != "float32":
        dtype = request.attack_dtype
        yield f"Attacks that need no precision search in {dtype}; verdicts are those of float32."
    for row in results.rows:
        for seed, each in enumerate(results.seeds[row.key]):
            yield from _troubles(f"{results.name(row)}, seed {seed}", each)
    every = [each for seeds in results.seeds.values() for each in seeds]
    for name in dict.fromkeys(flag.name for each in every for flag in each.flags):
        yield f"{name}: {MEANINGS[name]}."
    yield from missing(results)


def missing(results: Results) -> Iterator[str]:
    """What an artefact lacks, and the command that completes it."""
    if results.missing:
        how = f"To continue, with the same --workspace and --runs: {results.remaining.command}"
        yield f"Missing: {'; '.join(results.missing)}. {how}"


def _timed(results: Results) -> str:
    known = [results.cell(row, TIME).timing for row in results.rows]
    machines = {(entry.get("device"), entry.get("cpu"), entry.get("threads")) for entry in known if entry}
    theirs = f"{TIME}: seconds per training step, the paper's on its GPU"
    if len(machines) > 1:
        return f"{theirs}, ours not all on one machine with as many threads: they cannot be compared."
    for device, cpu, threads in machines:
        ours = f"{cpu}, {threads} thread{'' if threads == 1 else 's'}" if device == "cpu" else device
        return f"{theirs}, ours on {ours or 'an unknown machine'}."
    return f"{theirs}."


def _worst_of(results: Results) -> str:
    """The attacks over which the worst case is taken."""
    every = [each for seeds in results.seeds.values() for each in seeds if each.worst_of]
    taken = {label for each in every for label in each.worst_of}
    left = [c for c in SUITES if c in {label for each in every for label in each.reports} - taken]
    return f"all attacks but {' and '.join(left)}, which had fewer images" if left else "all attacks"


def _troubles(who: str, result: SeedResult) -> Iterator[str]:
    status = result.status
    if status.state == "failed":
        yield f"{who}: training broke off with numbers that are not finite."
    if status.collapses and status.best_epoch is not None:
        epochs = ", ".join(str(epoch + 1) for epoch in status.collapses)
        yield f"{who}: collapsed in epoch {epochs}; the numbers are of epoch {status.best_epoch + 1}."
    if result.at_chance:
        yield f"{who}: no better than guessing on clean images, so its numbers say nothing of the method."
    for name in dict.fromkeys(flag.name for flag in result.flags):
        evidence = "; ".join(flag.evidence for flag in result.flags if flag.name == name)
        yield f"{who}: {name}: {evidence}."


@dataclass(frozen=True)
class PairedTests:
    """One row against others, under each strong attack and in the worst case."""

    one: str
    others: tuple[str, ...]

    def __call__(self, results: Results) -> Table | None:
        rows = {row.key: row for row in results.rows}
        names = {key: _marked_name(results, row) for key, row in rows.items()}
        others = [key for key in self.others if key in rows and self.one in rows]
        lines: list[TableRow] = []
        for column in (c for c in (*STRONG, WORST_CASE) if c in results.request.artefact.columns):
            for other in others:
                one, two = (results.cell(rows[key], column) for key in (self.one, other))
                for seed, pair in one.paired(two):
                    gap, (low, high) = 100 * pair.difference, pair.interval
                    difference = Cell(f"{gap:+.2f}", gap, (100 * low, 100 * high))
                    counts = [str(number) for number in (seed, pair.n, pair.only_a, pair.only_b)]
                    p_value = Cell.number(pair.p_value, "{:.2g}")
                    lines.append([column, names[other], *counts, difference, p_value])
        if not lines:
            return None
        head = f"{title(results)}: {names[self.one]} against others"
        return Table.of(head, PAIRED_HEADS, lines, notes=(PAIRED_NOTE,))


def _marked_name(results: Results, row: ModelRow) -> str:
    marks = ", ".join(results.marks(row))
    return f"{results.name(row)} ({marks})" if marks else results.name(row)
