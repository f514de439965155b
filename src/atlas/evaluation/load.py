"""Read what an evaluation has left in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from atlas.errors import CheckpointError
from atlas.evaluation.flags import Flag
from atlas.evaluation.folder import EvaluationFolder, slug
from atlas.evaluation.results import COLUMNS, AttackResult, Report


def load_report(path: Path) -> Report:
    """The report of an evaluation that has come to its end."""
    place = EvaluationFolder(path)
    if not (path / "summary.json").exists() and (inside := sorted(path.glob("evaluations/*/summary.json"))):
        names = ", ".join(str(each.parent) for each in inside)
        raise CheckpointError(f"{path} is a run; name one of its evaluations: {names}")
    try:
        summary = json.loads((path / "summary.json").read_text())
        clean = _columns(place, "clean")
        results = {
            label: _result(label, about, _columns(place, f"attack-{slug(label)}"))
            for label, about in summary["attacks"].items()
        }
        flags = [Flag(**flag) for flag in summary["flags"]]
        about = summary["about"]
        columns = (clean["ids"], clean["y"], clean["right"])
        called = tuple(map(str, summary.get("class_names", ())))
        return Report(about, *columns, results, flags, place.times(), called, path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} holds no finished evaluation ({type(error).__name__}: {error}); run it to the end, "
            "and name the folder that it wrote to"
        ) from error


def _columns(place: EvaluationFolder, name: str) -> dict[str, Tensor]:
    columns = place.load_columns(name)
    if columns is None:
        raise CheckpointError(
            f"{place.path / name}.npz is missing or damaged; run the evaluation there again"
        )
    return columns


def _result(label: str, about: dict[str, Any], columns: dict[str, Tensor]) -> AttackResult:
    values = (columns[name] for name in COLUMNS)
    return AttackResult(
        label, about["attack"], about["white_box"], about["steps"], about["attempts"], *values
    )
