"""The files of an artefact."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atlas.files import write_atomic
from atlas.reports import plots
from atlas.reports.tables import Table
from atlas_paper.artefact import Row
from atlas_paper.comparison import listed, side_by_side, title
from atlas_paper.results import Findings
from atlas_paper.workspace import commit


def write(findings: Findings, folder: Path) -> list[Path]:
    """Tables as Markdown, LaTeX, CSV and JSON, the figure as PDF, SVG and PNG; the paths of all."""
    artefact = findings.order.artefact
    name, more = artefact.name, _made(artefact.tables, findings)
    tables = {**({name: side_by_side(findings)} if artefact.columns else {}), **more}
    data = _made(artefact.data, findings)
    files = {f"{name}.md": "\n".join(table.markdown() for table in tables.values())}
    files |= {f"{part}.tex": table.latex() for part, table in tables.items()}
    if artefact.columns:
        files[f"{name}.csv"] = listed(findings).csv()
    files |= {f"{part}.csv": table.csv() for part, table in {**more, **data}.items()}
    parts = {part: table.plain() for part, table in {**more, **data}.items()}
    files[f"{name}.json"] = json.dumps({**plain(findings), "tables": parts}, indent=1) + "\n"
    for file, text in files.items():
        write_atomic(folder / file, text.encode())
    return [*(folder / file for file in files), *plots.save(artefact.figure(findings), folder / name)]


def _made(makers: Mapping[str, Callable[[Findings], Table | None]], findings: Findings) -> dict[str, Table]:
    """The tables for which all is there."""
    return {name: table for name, make in makers.items() if (table := make(findings)) is not None}


def plain(findings: Findings) -> dict[str, Any]:
    """All numbers, each with what it comes from."""
    order = findings.order
    return {
        "artefact": order.artefact.name,
        "of": order.artefact.of,
        "title": title(findings),
        "scale": order.scale,
        "version": order.version,
        "seeds": order.seeds,
        "precision": order.precision,
        "attack_dtype": order.attack_dtype,
        "command": order.command,
        "commit": commit(),
        "surrogates": {task: order.surrogate(task).command for task in _attacked(findings)},
        "missing": findings.missing,
        "rows": [_row(findings, row) for row in findings.rows],
    }


def _attacked(findings: Findings) -> list[str]:
    """The data sets with a black box column."""
    order = findings.order
    return sorted({row.task for row in findings.rows if any(c.transfer for c in order.columns(row))})


def _row(findings: Findings, row: Row) -> dict[str, Any]:
    run = findings.order.run(row, 0)
    return {
        "key": row.key,
        "label": row.label,
        "task": row.task,
        "network": run.config.model,
        "preset": run.preset,
        "changes": dict(run.changes),
        "runs": [subject.course.record() for subject in findings.subjects[row.key]],
        "cells": {c: findings.value(row, c).plain() for c in findings.order.shown(row)},
    }
