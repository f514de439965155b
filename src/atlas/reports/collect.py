"""Read the folders of runs and evaluations for a report."""

from __future__ import annotations

import json
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
from atlas.models.weights import normalization_of
from atlas.runs import Record, Run
from atlas.threat import Threat
from atlas.training import RunConfig, Training, load_model

EVALUATIONS = "evaluations"
"""The folder in which `atlas evaluate` puts evaluations."""
NEEDED = ("model", "data", "data_hash", "threat", "attacks", "standing", "seed", "attack_dtype", "eot")
"""What a report reads of the description of an evaluation."""
UNFINISHED = "evaluation {} has not finished: run it again to resume it"


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
    epochs: Sequence[Record] = ()
    seconds: float = 0.0
    """Of training, over all starts."""

    @property
    def best(self) -> Record | None:
        """The epoch whose weights were kept."""
        return next((epoch for epoch in reversed(self.epochs) if epoch.get("best")), None)

    @property
    def collapse(self) -> Record | None:
        """The first epoch of the first collapse."""
        return next((epoch for epoch in self.epochs if epoch.get("collapse")), None)


def collect(paths: Sequence[Path], given: Given = Given()) -> list[ReportedModel]:
    """The models in these folders of runs and evaluations, each once, with unique names.

    An evaluation of a run's weights belongs to that run. Other evaluations of one model in one folder belong
    together. `given` supplies what the folders lack.
    """
    places = list(dict.fromkeys(place for path in paths for place in _evaluations_in(path.resolve())))
    if not places:
        raise UsageError("expected folders of runs or evaluations, such as runs/demo/demo-atlas-1, got none")
    reports = {place: _finished(place) for place in places if _is_evaluation(place)}
    runs = {place: _read_run(place, given) for place in places if place not in reports}
    of_runs = {report.folder for run in runs.values() for report in run.evaluations.values()}
    found = dict[Path, ReportedModel]()
    for place in places:
        if place in runs:
            found.setdefault(place, runs[place])
        elif place not in of_runs:
            folder = _model_folder(place, reports, runs)
            model = found.get(folder) or runs.get(folder) or ReportedModel("", folder, {})
            found[folder] = _with_evaluation(model, place, reports[place])
    _check_used(given, [*found.values()])
    return [_with_advice(model, name) for model, name in zip(found.values(), _names([*found]), strict=True)]


def _evaluations_in(path: Path) -> list[Path]:
    """The evaluations right below a folder that holds nothing else, or the folder itself."""
    inside = [] if (path / CONFIG).exists() else [each.parent for each in sorted(path.glob(f"*/{CONFIG}"))]
    return inside if inside and all(map(_is_evaluation, inside)) else [path]


def _is_evaluation(path: Path) -> bool:
    return "attacks" in _table(path / CONFIG)


def _table(path: Path) -> dict[str, Any]:
    """What a JSON file holds; empty where it cannot be read."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        return dict(json.loads(path.read_bytes()))
    return {}


def origin(path: Path) -> dict[str, Any]:
    """Command and commit of the run, if they were written beside it."""
    return _table(path / ORIGIN)


def _read_run(path: Path, given: Given) -> ReportedModel:
    run = Run(path)
    if not run.config_path.is_file():
        below = [*path.glob(f"*/{CONFIG}"), *path.glob(f"*/*/{CONFIG}")]
        inside = sorted({place.relative_to(path).parts[0] for place in below})
        hint = f": did you mean {path.name}/*? It has {', '.join(inside[:3])}" if inside else ""
        raise UsageError(
            f"{path} is not the folder of a run or an evaluation: it has no {CONFIG}. Expected "
            f"a folder that `atlas train`, atlas.fit or `atlas evaluate` wrote to{hint}"
        )
    settings = run.config
    # `atlas train` writes all of it, `atlas.fit` neither data nor model, and a custom config what it likes.
    whole = {"data": "", "model": "", **settings}
    config = RunConfig.of(whole) if {"method", "threat"} <= settings.keys() else None
    model = _model(run, settings, given) if run.best_path.exists() else None
    weights = None if model is None else source.fingerprint(model)
    evaluations, left_out = _evaluations(path, weights)
    commit = origin(path).get("commit")
    return ReportedModel(
        name="",
        path=path,
        evaluations=evaluations,
        notes=(*_training_notes(run), *left_out),
        weights=weights,
        model=model,
        data=(config and config.data) or given.data,
        architecture=(config and config.model) or given.model,
        method=config.method if config else None,
        threat=config.threat if config else given.threat,
        training=config.training if config else None,
        settings=settings,
        config_hash=str(run.noted("hash")),
        command=str(run.noted("command") or ""),
        commit=None if commit is None else str(commit),
        epochs=_epochs(run),
        seconds=run.seconds,
    )


def _training_notes(run: Run) -> list[str]:
    """What is unusual about a training."""
    notes = []
    if run.changed_from:
        notes.append(f"settings were changed during training, from hash {run.changed_from[-1]}")
    if run.not_finite_path.exists():
        notes.append("training stopped because its numbers were not finite")
    elif run.begun and not run.last_path.exists():
        notes.append("training has not finished")
    if not run.best_path.exists():
        notes.append(f"{run.best_path.name} is missing, so the model cannot be attacked")
    return notes


def _model(run: Run, settings: Mapping[str, Any], given: Given) -> nn.Module | None:
    """With its best weights; None if the architecture is not known."""
    if "model" in settings:
        return load_model(run.path)
    if given.model is None or given.data is None:
        return None
    images = load_test_images(given.data, given.root)
    normalize = normalization_of(load_tensors(run.best_path)[0])
    return load_model(run.best_path, models.build(given.model, images.num_classes, images.shape, normalize))


def load_test_images(name: str, root: Path | None) -> Images:
    """The test images of a data set."""
    try:
        return data.load(name, train=False, root=root)
    except DataError as error:
        raise DataError(f"{error}; or omit what needs images (--no-attack)") from error


def _epochs(run: Run) -> list[Record]:
    """The epochs of a run. They are checked, because versions before 0.2 wrote no checksums."""
    epochs = run.epochs
    for number, record in enumerate(epochs):
        jacobian, rates = record.get("jacobian"), {"val_robust", "val_clean"}
        known = isinstance(jacobian, int | float) and not jacobian < 0 and rates <= record.keys()
        if not known or record.get("epoch") != number:
            raise CheckpointError(
                f"{run.metrics_path} is damaged: expected epoch {number} with val_robust, val_clean and "
                f"a jacobian >= 0, got {record}"
            )
    return epochs


def _evaluations(path: Path, weights: str | None) -> tuple[dict[str, Report], list[str]]:
    """The finished evaluations of these weights, in the run's folder or beside it; notes on the others."""
    found, notes = dict[str, Report](), []
    for folder in Run(path).evaluations():
        report = _finished(folder)
        if report is None:
            notes.append(UNFINISHED.format(folder.name))
        elif weights and report.about["model"] != weights:
            notes.append(f"evaluation {folder.name} is of other weights than these and was left out")
        else:
            found[folder.name] = report
    if found and not weights:
        notes.append("without the weights it is not known whether its evaluations are of them")
    # `atlas reproduce` evaluates WORKSPACE/runs/NAME in WORKSPACE/evaluations/NAME.
    reproduced = path.parent.parent / EVALUATIONS / path.name
    for summary in sorted([*path.parent.glob(f"*/{SUMMARY}"), *reproduced.glob(f"*/{SUMMARY}")]):
        # Either of its files may say so, so that damage to the other one is noticed.
        about, folder = _table(summary).get("about"), summary.parent
        tables = (about if isinstance(about, dict) else {}, _table(folder / CONFIG))
        ours = weights is not None and any(table.get("model") == weights for table in tables)
        if ours and (report := _finished(folder)):
            found[folder.name] = report
    return found, notes


def _finished(folder: Path) -> Report | None:
    """The report of an evaluation; None if it has not finished."""
    if not (folder / SUMMARY).exists():
        return None
    report = load_report(folder)
    if missing := [key for key in NEEDED if key not in report.about]:
        raise CheckpointError(f"{folder / SUMMARY} must have {', '.join(missing)}: evaluate again")
    return report


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
    there = {each.about["model"] for p, each in reports.items() if each and _folder_above(p) == above}
    return place if len(there) > 1 or above in runs else above


def _folder_above(place: Path) -> Path:
    """RUN of RUN/evaluations/NAME, evaluations/MODEL of evaluations/MODEL/NAME, else the folder itself."""
    above = place.parent
    if above.name == EVALUATIONS and (above.parent / CONFIG).is_file():
        return above.parent
    return above if above.parent.name == EVALUATIONS else place


def _with_evaluation(model: ReportedModel, place: Path, report: Report | None) -> ReportedModel:
    if report is None:
        return replace(model, notes=(*model.notes, UNFINISHED.format(place.name)))
    name = place.name if place.name not in model.evaluations else f"{place.parent.name}/{place.name}"
    evaluations = {**model.evaluations, name: report}
    return replace(model, evaluations=evaluations, weights=str(report.about["model"]))


def _with_advice(model: ReportedModel, name: str) -> ReportedModel:
    """With its name, and notes on what is missing."""
    notes = list(model.notes)
    if not (model.evaluations or model.settings):
        raise CheckpointError(f"{model.path}: {'; '.join(notes)}")
    if model.best and model.best.get("constant"):
        notes.insert(0, "constant: its weights give every validation image the same prediction")
    if not model.evaluations:
        by_command = "run `atlas evaluate` on its folder, then report again"
        by_hand = "call `atlas.evaluate(..., folder=...)` and report that folder too"
        notes.append(f"not evaluated yet: {by_command if 'model' in model.settings else by_hand}")
    options = {"--model": model.architecture, "--data": model.data, "--eps": model.threat}
    lacking = " and ".join(option for option, value in options.items() if value is None)
    if model.settings and lacking:
        notes.append(f"no curves, gallery and predictions under attack: these need {lacking}")
    return replace(model, name=name, notes=tuple(notes))


def _check_used(given: Given, models: Sequence[ReportedModel]) -> None:
    """Refuse an option that would have no effect."""
    runs = [model for model in models if model.settings]
    options = {"data": (given.data, models), "model": (given.model, runs), "threat": (given.threat, runs)}
    for key, (value, concerned) in options.items():
        if value is not None and all(key in model.settings for model in concerned):
            option = "--eps" if key == "threat" else f"--{key}"
            raise UsageError(f"{option} is for folders that lack it, and none of these does: omit it")


def _names(places: Sequence[Path]) -> list[str]:
    """The last part of each path, or as many parts as make the names unique."""
    for count in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-count:]) for place in places]
        if len(set(names)) == len(names):
            break
    return names
