"""All of an artefact that is finished, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from atlas.reports.tables import Table
from atlas_paper import paper
from atlas_paper.artefact import ModelRow
from atlas_paper.cells import CellResult, JobResult
from atlas_paper.request import Request
from atlas_paper.workspace import Workspace


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
        return {
            row.key: {
                column: CellResult(column, self.jobs[row.key], paper.number(row.task, row.paper, column))
                for column in self.request.columns(row)
            }
            for row in self.rows
        }

    @cached_property
    def columns(self) -> list[str]:
        """Those in which any row has a number, the paper's or ours, or a reason why it has none."""
        filled = {
            column
            for cells in self.cells.values()
            for column, cell in cells.items()
            if cell.paper is not None or cell.status != "missing"
        }
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
        lacks = {
            key: [f"seed {each.job.run.seed}: {each.lacks}" for each in jobs if each.lacks]
            for key, jobs in self.jobs.items()
        }
        return {key: found for key, found in lacks.items() if found}

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
