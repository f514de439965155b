"""Read the folders of runs and evaluations for a report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from atlas import data, models
from atlas.checkpoint import load_tensors
from atlas.data import Images
from atlas.errors import CheckpointError, DataError, UsageError
from atlas.evaluation import Report
from atlas.evaluation.evaluation_folder import CONFIG, SUMMARY, load_report
from atlas.files import ORIGIN
from atlas.methods import Method
from atlas.models import source
from atlas.runs import Run
from atlas.threat import Threat
from atlas.training import RunConfig, Training, load_model


@dataclass(frozen=True)
class Epoch:
    """The validation after one epoch."""

    number: int
    """From 1."""
    robust: float
    clean: float
    jacobian: float
    best: bool
    """Whether it was the best so far, and its weights were kept."""
    collapse: bool
    """Whether the model collapsed in this epoch."""
    constant: bool = False
    """Whether every validation image got the same prediction."""
    majority: float | None = None
    """The share of the largest class, of imbalanced classes: the accuracy of a constant model."""
    balanced: float | None = None
    """The mean of the classes' robust accuracies, of imbalanced classes."""


@dataclass(frozen=True)
class Given:
    """What the caller states about models whose folders lack it, such as those of `atlas.fit`."""

    data: str | None = None
    """A data set's name or path."""
    model: str | None = None
    """A model's name, or ``module.path:factory``."""
    threat: Threat | None = None
    root: Path | None = None
    """Where named data sets are."""


@dataclass(frozen=True, eq=False)
class ReportedModel:
    """A model with everything that its folders hold; without training, the fields of training are empty."""

    name: str
    path: Path
    evaluations: Mapping[str, Report]
    """By the name of their folder."""
    notes: tuple[str, ...] = ()
    """What is missing, and what to do about it."""
    weights: str | None = None
    """What identifies the model: the fingerprint of its weights, if they are there."""
    model: nn.Module | None = None
    """With the weights of the best epoch; None where they are not in the folder."""
    data: str | None = None
    architecture: str | None = None
    method: Method | None = None
    threat: Threat | None = None
    training: Training | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The configuration as `config.json` has it."""
    config_hash: str = ""
    command: str = ""
    commit: str | None = None
    epochs: tuple[Epoch, ...] = ()
    seconds: float = 0.0
    """Of training, over all starts."""

    @property
    def best(self) -> Epoch | None:
        """The epoch whose weights were kept."""
        return next((epoch for epoch in reversed(self.epochs) if epoch.best), None)

    @property
    def collapse(self) -> Epoch | None:
        """The first epoch of the first collapse."""
        return next((epoch for epoch in self.epochs if epoch.collapse), None)


def collect(paths: Sequence[Path], given: Given = Given()) -> list[ReportedModel]:
    """The models in these folders of runs and evaluations, each once, with unique names.

    An evaluation of a run's weights belongs to that run. Other evaluations of one model in one folder belong
    together. `given` supplies what the folders lack.
    """
    places = list(dict.fromkeys(place for path in paths for place in _evaluations_in(path.resolve())))
    if not places:
        raise UsageError("expected folders of runs or evaluations, such as runs/demo/demo-atlas-1, got none")
    reports = {place: _finished(place) for place in places if is_evaluation(place)}
    runs = {place: read_run(place, given) for place in places if place not in reports}
    found = dict[Path, ReportedModel]()
    for place in places:
        if place in runs:
            found.setdefault(place, runs[place])
        elif not any(place == known.folder for run in runs.values() for known in run.evaluations.values()):
            folder = _model_folder(place, reports, runs)
            known = found.get(folder) or runs.get(folder)
            found[folder] = _with_evaluation(known or ReportedModel("", folder, {}), place, reports[place])
    models = [replace(run, name=name) for run, name in zip(found.values(), _names([*found]), strict=True)]
    _check_used(given, models)
    return list(map(_with_advice, models))


def read_run(path: Path, given: Given = Given()) -> ReportedModel:
    """The run in this folder."""
    folder = Run(path)
    if not folder.config_path.is_file():
        inside = sorted({each.relative_to(path).parts[0] for each in _below(path)})
        hint = f": did you mean {path.name}/*? It has {', '.join(inside[:3])}" if inside else ""
        raise UsageError(
            f"{path} is not the folder of a run or an evaluation: it has no {CONFIG}. Expected "
            f"a folder that `atlas train`, atlas.fit or `atlas evaluate` wrote to{hint}"
        )
    settings = folder.config
    commit = origin(path).get("commit")
    model = _model(folder, settings, given) if folder.best_path.exists() else None
    weights = source.fingerprint(model) if model is not None else None
    evaluations, notes = evaluations_of(path, weights)
    if not folder.best_path.exists():
        notes.insert(0, f"{folder.best_path.name} is missing, so the model cannot be attacked")
    if folder.not_finite_path.exists():
        notes.insert(0, "training stopped because its numbers were not finite")
    elif folder.begun and not folder.last_path.exists():
        notes.insert(0, "training has not finished")
    if folder.changed_from:
        notes.insert(0, f"settings were changed during training, from hash {folder.changed_from[-1]}")
    return ReportedModel(
        name=path.name,
        path=path,
        evaluations=evaluations,
        notes=tuple(notes),
        weights=weights,
        model=model,
        **_parts(settings, given),
        settings=settings,
        config_hash=str(folder.noted("hash")),
        command=str(folder.noted("command") or ""),
        commit=None if commit is None else str(commit),
        epochs=_epochs(folder),
        seconds=folder.seconds,
    )


def _parts(settings: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """What a configuration says, completed by what is given.

    That of `atlas train` has everything, that of `atlas.fit` neither data nor model, and a custom one of
    `atlas.fit` may have nothing.
    """
    if not {"method", "threat"} <= settings.keys():
        return {"data": given.data, "architecture": given.model, "threat": given.threat}
    config = RunConfig.of({"data": given.data or "", "model": given.model or "", **settings})
    parts = {"method": config.method, "threat": config.threat, "training": config.training}
    return {"data": config.data or None, "architecture": config.model or None, **parts}


def _model(folder: Run, settings: Mapping[str, Any], given: Given) -> nn.Module | None:
    """With its best weights; None if the architecture is not known."""
    if "model" in settings:
        return load_model(folder.path)
    if given.model is None or given.data is None:
        return None
    images, normalize = load_test_images(given.data, given.root), None
    tensors, _ = load_tensors(folder.best_path)
    if {key.partition(".")[0] for key in tensors} == {"normalize", "net"}:  # built with `normalize`
        mean, std = (tensors[f"normalize.{key}"].flatten().tolist() for key in ("mean", "std"))
        normalize = mean, std
    return load_model(
        folder.best_path, models.build(given.model, images.num_classes, images.shape, normalize)
    )


def load_test_images(name: str, root: Path | None) -> Images:
    """The test images of a data set."""
    try:
        return data.load(name, train=False, root=root)
    except DataError as error:
        raise DataError(f"{error}; or omit what needs images (--no-attack)") from error


def _model_folder(
    place: Path, reports: Mapping[Path, Report | None], runs: Mapping[Path, ReportedModel]
) -> Path:
    """The folder by which a page names the model of an evaluation.

    That of the run with its weights; or the one in which `atlas evaluate` puts all evaluations of a model,
    unless other models were evaluated there too; else that of the evaluation itself.
    """
    report, above = reports[place], _folder_above(place)
    if report and (owner := next((p for p, r in runs.items() if r.weights == report.about["model"]), None)):
        return owner
    models = {each.about["model"] for p, each in reports.items() if each and _folder_above(p) == above}
    return place if len(models) > 1 or above in runs else above


def _folder_above(place: Path) -> Path:
    """RUN of RUN/evaluations/NAME, evaluations/MODEL of evaluations/MODEL/NAME, else the folder itself."""
    above = place.parent
    if above.name == EVALUATIONS and (above.parent / CONFIG).is_file():
        return above.parent
    return above if above.parent.name == EVALUATIONS else place


def _with_evaluation(run: ReportedModel, place: Path, report: Report | None) -> ReportedModel:
    if report is None:
        return replace(run, notes=(*run.notes, unfinished(place)))
    name = place.name if place.name not in run.evaluations else f"{place.parent.name}/{place.name}"
    return replace(run, evaluations={**run.evaluations, name: report}, weights=str(report.about["model"]))


def _with_advice(run: ReportedModel) -> ReportedModel:
    """With notes on what is missing."""
    notes = list(run.notes)
    if run.best and run.best.constant:
        notes.insert(0, "constant: its weights give every validation image the same prediction")
    if not (run.evaluations or run.settings):
        raise CheckpointError(f"{run.path}: {'; '.join(notes)}")
    if not run.evaluations:
        by_command = "run `atlas evaluate` on its folder, then report again"
        by_hand = "call `atlas.evaluate(..., folder=...)` and report that folder too"
        notes.append(f"not evaluated yet: {by_command if 'model' in run.settings else by_hand}")
    lacking = {"--model": run.architecture, "--data": run.data, "--eps": run.threat}
    options = [option for option, value in lacking.items() if value is None]
    if run.settings and options:
        notes.append(f"no curves, gallery and predictions under attack: these need {' and '.join(options)}")
    return replace(run, notes=tuple(notes))


def _check_used(given: Given, models: Sequence[ReportedModel]) -> None:
    """Refuse an option that would have no effect."""
    runs = [run for run in models if run.settings]
    used = {
        "--data": given.data is None or any("data" not in run.settings for run in models),
        "--model": given.model is None or any("model" not in run.settings for run in runs),
        "--eps": given.threat is None or any("threat" not in run.settings for run in runs),
    }
    for option, useful in used.items():
        if not useful:
            raise UsageError(f"{option} is for folders that lack it, and none of these does: omit it")


def origin(path: Path) -> dict[str, Any]:
    """Command and commit of the run, if they were written beside it."""
    try:
        return dict(json.loads((path / ORIGIN).read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def _below(path: Path) -> list[Path]:
    """Folders with a configuration, one or two levels below."""
    return [place.parent for deep in ("*", "*/*") for place in sorted(path.glob(f"{deep}/{CONFIG}"))]


def _evaluations_in(path: Path) -> list[Path]:
    """The evaluations right below a folder that holds nothing else, or the folder itself."""
    if (path / CONFIG).exists() or not path.is_dir():
        return [path]
    inside = [place for place in _below(path) if place.parent == path]
    return inside if inside and all(map(is_evaluation, inside)) else [path]


def is_evaluation(path: Path) -> bool:
    """Whether it is the folder of an evaluation."""
    try:
        return "attacks" in json.loads((path / CONFIG).read_text())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _names(places: Sequence[Path]) -> list[str]:
    """The last part of each path, or as many parts as make the names unique."""
    for count in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-count:]) for place in places]
        if len(set(names)) == len(names):
            break
    return names


def _epochs(run: Run) -> tuple[Epoch, ...]:
    found = list[Epoch]()
    for record in run.epochs:
        try:
            robust, clean, jacobian = (float(record[key]) for key in ("val_robust", "val_clean", "jacobian"))
            marks = (record.get(key) is True for key in ("best", "collapse", "constant"))
            shares = (record.get(key) for key in ("val_majority", "val_balanced"))
            epoch = Epoch(record["epoch"] + 1, robust, clean, jacobian, *marks, *shares)
            if epoch.number != len(found) + 1 or epoch.jacobian < 0:
                raise ValueError(f"got epoch {record['epoch']} with a jacobian of {epoch.jacobian:g}")
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{run.metrics_path} is damaged: expected epoch {len(found)} with val_robust, val_clean and "
                f"a jacobian >= 0 ({type(error).__name__}: {error})"
            ) from error
        found.append(epoch)
    return tuple(found)


NEEDED = ("model", "data", "data_hash", "threat", "attacks", "standing", "seed", "attack_dtype", "eot")
"""What a report reads of the description of an evaluation."""
EVALUATIONS = "evaluations"
"""The folder in which `atlas evaluate` puts evaluations."""


def evaluations_of(path: Path, weights: str | None) -> tuple[dict[str, Report], list[str]]:
    """The finished evaluations of these weights, in the run's folder or beside it, and notes on the others.

    `weights` is the fingerprint of the model.
    """
    found, notes = dict[str, Report](), []
    for folder in Run(path).evaluations():
        report = _finished(folder)
        if report is None:
            notes.append(unfinished(folder))
        elif weights is not None and report.about["model"] != weights:
            notes.append(f"evaluation {folder.name} is of other weights than these and was left out")
        else:
            found[folder.name] = report
    # `atlas reproduce` evaluates WORKSPACE/runs/NAME in WORKSPACE/evaluations/NAME.
    reproduced = path.parent.parent / EVALUATIONS / path.name
    beside = sorted([*path.parent.glob(f"*/{SUMMARY}"), *reproduced.glob(f"*/{SUMMARY}")])
    for folder in (place.parent for place in beside) if weights is not None else ():
        if weights in _models_of(folder) and (report := _finished(folder)):
            found[folder.name] = report
    if found and weights is None:
        notes.append("without the weights it is not known whether its evaluations are of them")
    return found, notes


def unfinished(folder: Path) -> str:
    """The note on an evaluation without a result."""
    return f"evaluation {folder.name} has not finished: run it again to resume it"


def _models_of(folder: Path) -> set[str]:
    """Which model an evaluation beside a run is of, by both of its files, so that damage to one shows."""
    found = set()
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        found.add(str(json.loads((folder / SUMMARY).read_bytes())["about"]["model"]))
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        found.add(str(json.loads((folder / CONFIG).read_bytes())["model"]))
    return found


def _finished(folder: Path) -> Report | None:
    """The report of an evaluation with everything that a page reads; None if it has not finished."""
    if not (folder / SUMMARY).exists():
        return None
    report = load_report(folder)
    missing = [key for key in NEEDED if key not in report.about]
    threat = report.about.get("threat")
    eps = threat.get("eps") if isinstance(threat, dict) and "name" in threat else None
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 <= eps < math.inf:
        missing.append("threat with an eps >= 0")
    if not all(isinstance(result.table, dict) for result in report.results.values()):
        missing.append("settings of its attacks")
    kinds = {"name": str, "message": str, "fatal": bool}
    if not all(isinstance(getattr(flag, key), kinds[key]) for flag in report.flags for key in kinds):
        missing.append("texts of its warnings")
    if missing:
        raise CheckpointError(f"{folder / SUMMARY} must have {', '.join(missing)}: evaluate again")
    return report
