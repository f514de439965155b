"""All of an artefact that is finished, beside the paper's numbers, and the files that are made of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from atlas.evaluation.flags import MEANINGS
from atlas.evaluation.score import WORST_CASE
from atlas.files import write_atomic
from atlas.reports import plots
from atlas.reports.tables import Cell, Table
from atlas_paper import paper
from atlas_paper.artefact import ModelRow
from atlas_paper.cells import NOTHING, TIME, CellResult, JobResult
from atlas_paper.request import SUITES, Request
from atlas_paper.workspace import Workspace, commit

RECORDED = ("title", "scale", "version", "seeds", "precision", "attack_dtype", "command")
"""What the JSON file says of the request."""
STRONG = ("PGD-1000", "Un-T", "Multi-T", "AutoAttack", WORST_CASE)
"""The columns that the paper's claim is tested under."""
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


@dataclass(frozen=True)
class Results:
    """The finished jobs of an artefact, also of rows that were not asked for."""

    request: Request
    jobs: Mapping[str, tuple[JobResult, ...]]
    """By the key of the row, one for each seed."""
    workspace: Workspace

    @classmethod
    def of(cls, request: Request, workspace: Workspace) -> Results:
        """Read all that is finished; nothing is run."""
        jobs = {
            row.key: tuple(JobResult.of(request.job(row, k), workspace) for k in range(request.seeds))
            for row in request.scaled_rows
        }
        return cls(request, jobs, workspace)

    @property
    def rows(self) -> list[ModelRow]:
        return self.request.scaled_rows

    @cached_property
    def cells(self) -> dict[str, dict[str, CellResult]]:
        """By the key of the row, then by column."""
        found: dict[str, dict[str, CellResult]] = {row.key: {} for row in self.rows}
        for row in self.rows:
            for column in self.request.columns(row):
                number = paper.number(row.task, row.paper, column)
                found[row.key][column] = CellResult(column, self.jobs[row.key], number)
        return found

    @cached_property
    def columns(self) -> list[str]:
        """Those in which any row has a number, the paper's or ours, or a reason why it has none."""
        every = [cell for cells in self.cells.values() for cell in cells.values()]
        filled = {cell.column for cell in every if cell.paper is not None or cell.status != "missing"}
        return [column for column in self.request.artefact.all_columns if column in filled]

    @cached_property
    def tables(self) -> dict[str, Table]:
        """Those beside the comparison with the paper, where they have what they need."""
        made = {name: make(self) for name, make in self.request.artefact.tables.items()}
        return {name: table for name, table in made.items() if table is not None}

    def cell(self, row: ModelRow, column: str) -> CellResult:
        """An empty one where the row's data set lacks the column."""
        return self.cells[row.key].get(column, CellResult(column))

    def marks(self, row: ModelRow) -> tuple[str, ...]:
        """What must be said beside every number of a row."""
        return tuple(dict.fromkeys(mark for each in self.jobs[row.key] for mark in each.marks))

    @property
    def _lacking(self) -> dict[str, list[str]]:
        """What each row lacks."""
        return {
            key: found
            for key, jobs in self.jobs.items()
            if (found := [f"seed {each.job.run.seed}: {each.lacks}" for each in jobs if each.lacks])
        }

    @property
    def missing(self) -> list[str]:
        """What the artefact lacks."""
        asked = {row.key for row in self.request.rows}
        return [
            f"{key} ({what}{'' if key in asked else ', not asked for'})"
            for key, found in self._lacking.items()
            for what in found
        ]

    @property
    def remaining(self) -> Request:
        """The request that completes the artefact: also the missing rows that were not asked for."""
        asked = {row.key for row in self.request.rows}
        return self.request if self._lacking.keys() <= asked else replace(self.request, only=())


def write(results: Results, folder: Path) -> list[Path]:
    """Tables as Markdown, LaTeX, CSV and JSON, the figure as PDF, SVG and PNG; the paths of all."""
    artefact, name = results.request.artefact, results.request.artefact.name
    tables, files = results.tables, dict[str, str]()
    lists = {**tables, **{part: make(results) for part, make in artefact.data.items()}}
    if artefact.columns:
        tables = {name: side_by_side(results), **tables}
        files[f"{name}.csv"] = listed(results).csv()
    files[f"{name}.md"] = "\n".join(table.markdown() for table in tables.values())
    files |= {f"{part}.tex": table.latex() for part, table in tables.items()}
    files |= {f"{part}.csv": table.csv() for part, table in lists.items()}
    parts = {part: table.plain() for part, table in lists.items()}
    files[f"{name}.json"] = json.dumps({**plain(results), "tables": parts}, indent=1) + "\n"
    for file, text in files.items():
        write_atomic(folder / file, text.encode())
    return [*(folder / file for file in files), *plots.save(artefact.figure(results), folder / name)]


def plain(results: Results) -> dict[str, Any]:
    """All numbers, each with its origin."""
    request = results.request
    attacks = [(row.task, spec) for row in results.rows for spec in request.attacks(row)]
    return {
        "artefact": request.artefact.name,
        "of": request.artefact.of,
        **{name: getattr(request, name) for name in RECORDED},
        "commit": commit(),
        "surrogates": {task: spec.surrogate.command for task, spec in attacks if spec.surrogate},
        "missing": results.missing,
        "rows": [
            {
                "key": row.key,
                "label": row.label,
                "task": row.task,
                "network": jobs[0].job.run.config.model,
                "preset": jobs[0].job.run.preset,
                "changes": dict(jobs[0].job.run.changes),
                "runs": [each.plain() for each in jobs],
                "cells": {column: cell.plain() for column, cell in results.cells[row.key].items()},
            }
            for row, jobs in zip(results.rows, results.jobs.values(), strict=True)
        ],
    }


def side_by_side(results: Results) -> Table:
    """Three lines per row: the paper's accuracy in %, ours with its interval, the difference in points."""
    lines: list[TableRow] = []
    for row in results.rows:
        cells = [results.cell(row, column) for column in results.columns]
        network = results.request.run(row, 0).config.model
        name = results.request.row_name(row)
        lines.append([name, network, "paper", *(cell.paper_cell() for cell in cells)])
        more = {"ours": [c.cell() for c in cells], "difference": [c.difference_cell() for c in cells]}
        for what, line in more.items():
            if any(cell.text != NOTHING for cell in line):
                lines.append(["", "", what, *line])
    heads = ["", "network", "", *(_head(results, column) for column in results.columns)]
    return Table.of(results.request.title, heads, lines, notes=tuple(notes(results)))


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
            numbers = (
                Cell("", cell.paper),
                Cell("", cell.ours, cell.interval),
                Cell("", cell.difference),
                "" if cell.n is None else str(cell.n),
            )
            by_seed = " ".join(f"{100 * s.rate:.2f}" for s in cell.scores.values() if not s.reasons)
            status = ", ".join([cell.status, *cell.marks, *cell.reasons])
            lines.append([row.key, row.task, network, column, *numbers, by_seed, status])
    return Table.of(results.request.title, LIST_HEADS, lines)


def trained_with(results: Results) -> Iterator[str]:
    """What the trainings of an artefact used: network, images, precision."""
    request = results.request
    for task in dict.fromkeys(row.task for row in results.rows):
        runs = [request.run(row, 0).config for row in results.rows if row.task == task]
        held_out = " or ".join(f"{size:,}" for size in sorted({r.training.validation.size for r in runs}))
        words = request.setting(task)["words"]
        yield f"{task}: {words}. Of the training images {held_out} are for validation."
    if request.precision != "float32":
        timed = ", the time per batch too" if TIME in request.artefact.all_columns else ""
        yield f"Trained in {request.precision}, with channels last where that is fast{timed}."


def notes(results: Results) -> Iterator[str]:
    """How the table was made, and what it lacks."""
    request = results.request
    every = [each for jobs in results.jobs.values() for each in jobs]
    if request.scale == "smoke":
        yield NO_RESULT
    yield from trained_with(results)
    if request.seeds > 1:
        ours = f"the mean of {request.seeds} seeds, with a 95% interval for other seeds and other images"
    else:
        ours = "of one seed, with Wilson's 95% interval"
    worst = ""
    if any(results.cell(row, WORST_CASE).ours is not None for row in results.rows):
        taken = {label for each in every for label in each.worst_of}
        left = [c for c in SUITES if c in {label for each in every for label in each.reports} - taken]
        but = f" but {' and '.join(left)}, which had fewer images" if left else ""
        worst = f" The worst case is taken image by image over all attacks{but}."
    yield f"Accuracy in %; ours is {ours}, each model at its best validation epoch.{worst}"
    if TIME in results.columns:
        yield f"{TIME}: seconds per training step, the paper's on its GPU{_machines(results)}."
    if request.attack_dtype != "float32":
        dtype = request.attack_dtype
        yield f"Attacks that need no precision search in {dtype}; verdicts are those of float32."
    for row in results.rows:
        for each in results.jobs[row.key]:
            yield from _troubles(f"{request.row_name(row)}, seed {each.job.run.seed}", each)
    for name in dict.fromkeys(flag.name for each in every for flag in each.flags):
        yield f"{name}: {MEANINGS[name]}."
    yield from missing(results)


def missing(results: Results) -> Iterator[str]:
    """What an artefact lacks, and the command that completes it."""
    if results.missing:
        how = f"To continue, with the same --workspace and --runs: {results.remaining.command}"
        yield f"Missing: {'; '.join(results.missing)}. {how}"


def _machine(entry: Mapping[str, Any]) -> str:
    if entry.get("device") != "cpu":
        return entry.get("device") or "an unknown machine"
    threads = entry["threads"]
    return f"{entry['cpu']}, {threads} thread{'' if threads == 1 else 's'}"


def _machines(results: Results) -> str:
    """What our times were measured on."""
    known = [entry for row in results.rows if (entry := results.cell(row, TIME).timing)]
    names = {_machine(entry) for entry in known}
    if len(names) > 1:
        return ", ours not all on one machine with as many threads: they cannot be compared"
    return f", ours on {names.pop()}" if names else ""


def _troubles(who: str, result: JobResult) -> Iterator[str]:
    if result.state == "failed":
        yield f"{who}: training broke off with numbers that are not finite."
    if result.collapses and result.best_epoch is not None:
        epochs = ", ".join(str(epoch + 1) for epoch in result.collapses)
        yield f"{who}: collapsed in epoch {epochs}; the numbers are of epoch {result.best_epoch + 1}."
    if "at chance" in result.marks:
        yield f"{who}: no better than guessing on clean images, so its numbers say nothing of the method."
    for name in dict.fromkeys(flag.name for flag in result.flags):
        evidence = "; ".join(flag.evidence for flag in result.flags if flag.name == name)
        yield f"{who}: {name}: {evidence}."


def paired_tests(results: Results, one: str, others: Sequence[str]) -> Table | None:
    """One row against others, under each strong attack and in the worst case."""
    rows = {row.key: row for row in results.rows}
    if one not in rows:
        return None
    lines: list[TableRow] = []
    for column in (c for c in STRONG if c in results.request.artefact.all_columns):
        for other in (rows[key] for key in others if key in rows):
            for seed, pair in results.cell(rows[one], column).paired(results.cell(other, column)):
                gap, (low, high) = 100 * pair.difference, pair.interval
                difference = Cell(f"{gap:+.2f}", gap, (100 * low, 100 * high))
                counts = [str(number) for number in (seed, pair.n, pair.only_a, pair.only_b)]
                p_value = Cell.number(pair.p_value, "{:.2g}")
                lines.append([column, _marked_name(results, other), *counts, difference, p_value])
    head = f"{results.request.title}: {_marked_name(results, rows[one])} against others"
    return Table.of(head, PAIRED_HEADS, lines, notes=(PAIRED_NOTE,)) if lines else None


def _marked_name(results: Results, row: ModelRow) -> str:
    marks = ", ".join(results.marks(row))
    return f"{results.request.row_name(row)} ({marks})" if marks else results.request.row_name(row)
