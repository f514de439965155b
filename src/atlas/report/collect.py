"""A run's folder as a report needs it: what was trained, how that went, which evaluations there are."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from atlas.disk import ORIGIN
from atlas.errors import CheckpointError, UsageError
from atlas.evaluation import Report
from atlas.models import source
from atlas.report.evaluations import evaluations_of
from atlas.training import RunConfig, load_model
from atlas.training.folder import RunFolder


@dataclass(frozen=True)
class Epoch:
    """What validation said after one epoch."""

    number: int
    """From 1."""
    robust: float
    clean: float
    jacobian: float
    best: bool
    """Whether it was the best so far, and its weights were kept."""
    collapse: bool
    """Whether the watch holds the model for collapsed in this epoch."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run, whole: a page is made of nothing else."""

    name: str
    path: Path
    config: RunConfig
    config_hash: str
    command: str
    commit: str | None
    epochs: tuple[Epoch, ...]
    seconds: float
    """Of training, over all starts."""
    model: nn.Module | None
    """With the weights of the best epoch; None where they are not in the folder."""
    weights: str | None
    """Their fingerprint."""
    evaluations: Mapping[str, Report]
    """By the name of their folder."""
    notes: tuple[str, ...]
    """What is missing, and what to do about it."""

    @property
    def best(self) -> Epoch | None:
        """The epoch whose weights were kept."""
        return next((epoch for epoch in reversed(self.epochs) if epoch.best), None)

    @property
    def collapse(self) -> Epoch | None:
        """The first epoch of the first collapse."""
        return next((epoch for epoch in self.epochs if epoch.collapse), None)


def collect(paths: Sequence[Path]) -> list[Run]:
    """The runs in these folders, each once, under names that tell them apart."""
    places = list(dict.fromkeys(path.resolve() for path in paths))
    if not places:
        raise UsageError("no run was given; name the folders of runs, such as runs/demo/demo-atlas-1")
    runs = [read_run(place) for place in places]
    return [replace(run, name=name) for run, name in zip(runs, _names(places), strict=True)]


def read_run(path: Path) -> Run:
    folder = RunFolder(path)
    if _is_evaluation(path):
        raise UsageError(
            f"{path} is the folder of an evaluation, and a report is of runs, as `atlas train` makes them: "
            "name those. Two evaluations of any models are compared by `atlas compare`"
        )
    if not folder.config.is_file():
        raise UsageError(
            f"{path} is not the folder of a run: it has no {folder.config.name}. Wanted what `atlas train` "
            f"wrote to{_nearby(path)}"
        )
    config = RunConfig.of(folder.read_config())
    about = json.loads(folder.config.read_text())
    commit = origin(path).get("commit")
    model = load_model(path) if folder.best.exists() else None
    weights = source.fingerprint(model) if model is not None else None
    evaluations, notes = evaluations_of(path, weights)
    if model is None:
        notes.insert(0, f"{folder.best.name} is not in the folder, so nothing can be attacked here")
    if folder.not_finite.exists():
        notes.insert(0, "training broke off: its numbers were not finite")
    elif folder.begun and not folder.last.exists():
        notes.insert(0, "training has not come to its end")
    if folder.changed_from:
        notes.insert(0, f"settings were changed on the way, from those of hash {folder.changed_from[-1]}")
    if not evaluations:
        notes.append("not evaluated yet: run `atlas evaluate` on its folder, then report again")
    return Run(
        name=path.name,
        path=path,
        config=config,
        config_hash=str(about["hash"]),
        command=str(about.get("command", "")),
        commit=None if commit is None else str(commit),
        epochs=_epochs(folder.metrics),
        seconds=sum(_number(r, "seconds", folder.timing) for r in records(folder.timing) if "seconds" in r),
        model=model,
        weights=weights,
        evaluations=evaluations,
        notes=tuple(notes),
    )


def origin(path: Path) -> dict[str, Any]:
    """Who made the run, where that was written down beside it."""
    try:
        return dict(json.loads((path / ORIGIN).read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def _nearby(path: Path) -> str:
    """Runs below the folder, for who named the folder above them."""
    places = [place.parent for place in path.glob("*/config.json")] if path.is_dir() else []
    found = sorted(place.name for place in places if not _is_evaluation(place))
    return f": did you mean {path.name}/*? It has {', '.join(found[:3])}" if found else ""


def _is_evaluation(path: Path) -> bool:
    try:
        return "attacks" in json.loads((path / "config.json").read_text())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _names(places: Sequence[Path]) -> list[str]:
    """The last part of each path, or as many as it takes to tell them apart."""
    for count in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-count:]) for place in places]
        if len(set(names)) == len(names):
            break
    return names


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON lines, of which the last may be torn."""
    try:
        lines = path.read_bytes().splitlines() if path.exists() else []
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("not a table")
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise CheckpointError(f"{path} is damaged in line {number}: {error}; train again") from error
        records.append(record)
    return records


def _epochs(path: Path) -> tuple[Epoch, ...]:
    found = []
    for record in records(path):
        if record.get("kind") == "epoch":
            number, robust, clean, jacobian = (
                _number(record, key, path) for key in ("epoch", "val_robust", "val_clean", "jacobian")
            )
            best, collapse = (record.get(key) is True for key in ("best", "collapse"))
            found.append(Epoch(int(number) + 1, robust, clean, jacobian, best, collapse))
    return tuple(found)


def _number(record: Mapping[str, Any], key: str, path: Path) -> float:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"{path}: {key} is {value!r}; wanted a number: is it the file of a run?")
    return float(value) if math.isfinite(value) else math.nan
