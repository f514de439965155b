"""Folders of runs and evaluations as a report needs them: what was trained, how that went, how robust."""

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
from atlas.evaluation import Flag, Report
from atlas.evaluation.evaluation_folder import CONFIG, SUMMARY, load_report
from atlas.files import ORIGIN
from atlas.methods import Method
from atlas.models import source
from atlas.runs import Run as RunFolder
from atlas.threat import Threat
from atlas.training import RunConfig, Training, load_model


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
    constant: bool = False
    """Whether every validation image got the same answer."""
    majority: float | None = None
    """The share of the largest class, of imbalanced ones; what a constant model reaches."""
    balanced: float | None = None
    """The mean over the classes of their robust accuracies, of imbalanced ones."""


@dataclass(frozen=True)
class Given:
    """What the caller states about models whose folders do not, as those of `atlas.fit` do not."""

    data: str | None = None
    """A data set's name or path."""
    model: str | None = None
    """A model's name, or ``module.path:factory``."""
    threat: Threat | None = None
    root: Path | None = None
    """Where named data sets are."""


@dataclass(frozen=True, eq=False)
class Run:
    """One model with all that its folders hold: a page is made of nothing else.

    Of a model that was only evaluated, all that belongs to training has its default.
    """

    name: str
    path: Path
    evaluations: Mapping[str, Report]
    """By the name of their folder."""
    notes: tuple[str, ...] = ()
    """What is missing, and what to do about it."""
    weights: str | None = None
    """By which the model is known: the fingerprint of its weights, where they are at hand."""
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


def collect(paths: Sequence[Path], given: Given = Given()) -> list[Run]:
    """The models in these folders of runs and evaluations, each once, under names that tell them apart.

    An evaluation of a run's weights belongs to that run. Other evaluations of one model that lie in one
    folder belong together. `given` fills what the folders lack.
    """
    places = list(dict.fromkeys(place for path in paths for place in _evaluations_in(path.resolve())))
    if not places:
        raise UsageError("expected folders of runs or evaluations, such as runs/demo/demo-atlas-1, got none")
    reports = {place: _finished(place) for place in places if is_evaluation(place)}
    runs = {place: read_run(place, given) for place in places if place not in reports}
    found = dict[Path, Run]()
    for place in places:
        if place in runs:
            found.setdefault(place, runs[place])
        elif not any(place == known.folder for run in runs.values() for known in run.evaluations.values()):
            folder = _model_folder(place, reports, runs)
            known = found.get(folder) or runs.get(folder)
            found[folder] = _with_evaluation(known or Run("", folder, {}), place, reports[place])
    models = [replace(run, name=name) for run, name in zip(found.values(), _names([*found]), strict=True)]
    _check_used(given, models)
    return list(map(_with_advice, models))


def read_run(path: Path, given: Given = Given()) -> Run:
    """The run in this folder."""
    folder = RunFolder(path)
    if not folder.config_path.is_file():
        raise UsageError(
            f"{path} is not the folder of a run or an evaluation: it has no config.json. Expected a "
            f"folder that `atlas train`, atlas.fit or `atlas evaluate` wrote to{_nearby(path)}"
        )
    settings = folder.config
    parts = _parts(settings, given)
    commit = origin(path).get("commit")
    model = _model(folder, settings, given) if folder.best_path.exists() else None
    weights = source.fingerprint(model) if model is not None else None
    former = source.former_fingerprint(model) if model is not None else None
    evaluations, notes = evaluations_of(path, weights, former)
    if not folder.best_path.exists():
        notes.insert(0, f"{folder.best_path.name} is not in the folder, so nothing can be attacked here")
    if folder.not_finite_path.exists():
        notes.insert(0, "training broke off: its numbers were not finite")
    elif folder.begun and not folder.last_path.exists():
        notes.insert(0, "training has not come to its end")
    if folder.changed_from:
        notes.insert(0, f"settings were changed on the way, from those of hash {folder.changed_from[-1]}")
    return Run(
        name=path.name,
        path=path,
        evaluations=evaluations,
        notes=tuple(notes),
        weights=weights,
        model=model,
        **parts,
        settings=settings,
        config_hash=str(folder.noted("hash")),
        command=str(folder.noted("command") or ""),
        commit=None if commit is None else str(commit),
        epochs=_epochs(folder),
        seconds=folder.seconds,
    )


def _parts(settings: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """What a configuration says of a run, with what is given in the place of what it lacks.

    That of `atlas train` has all of it, that of `atlas.fit` neither data nor model, and one that a caller of
    `atlas.fit` made up may have none.
    """
    if not {"method", "threat"} <= settings.keys():
        return {"data": given.data, "architecture": given.model, "threat": given.threat}
    config = RunConfig.of({"data": given.data or "", "model": given.model or "", **settings})
    parts = {"method": config.method, "threat": config.threat, "training": config.training}
    return {"data": config.data or None, "architecture": config.model or None, **parts}


def _model(folder: RunFolder, settings: Mapping[str, Any], given: Given) -> nn.Module | None:
    """With its best weights; None where nobody says what model they are of."""
    if "model" in settings:
        return load_model(folder.path)
    if given.model is None or given.data is None:
        return None
    images = load_test_images(given.data, given.root)
    return load_model(
        folder.best_path,
        models.build(given.model, images.num_classes, images.shape, _normalization(folder.best_path)),
    )


def _normalization(weights: Path) -> tuple[list[float], list[float]] | None:
    """Mean and deviation of the first layer, of weights of a model that was built with `normalize`."""
    tensors, _ = load_tensors(weights)
    if {key.partition(".")[0] for key in tensors} != {"normalize", "net"}:
        return None
    mean, std = (tensors[f"normalize.{key}"].flatten().tolist() for key in ("mean", "std"))
    return mean, std


def load_test_images(name: str, root: Path | None) -> Images:
    """The test images of a data set."""
    try:
        return data.load(name, train=False, root=root)
    except DataError as error:
        raise DataError(f"{error}; or leave out what needs images (--no-attack)") from error


def _finished(place: Path) -> Report | None:
    """The report of an evaluation, None where it has not finished."""
    return checked_report(place) if (place / "summary.json").exists() else None


def _model_folder(place: Path, reports: Mapping[Path, Report | None], runs: Mapping[Path, Run]) -> Path:
    """The folder by which a page names the model of an evaluation.

    That of the run with its weights; or the one in which `atlas evaluate` puts all evaluations of a model,
    unless other models were evaluated there too; else that of the evaluation itself.
    """
    report, around = reports[place], _around(place)
    if report and (owner := next((p for p, r in runs.items() if r.weights == report.about["model"]), None)):
        return owner
    others = [known for other, known in reports.items() if known and _around(other) == around]
    shared = len({known.about["model"] for known in others}) > 1
    return place if shared or around in runs else around


def _around(place: Path) -> Path:
    """RUN of RUN/evaluations/NAME, evaluations/MODEL of evaluations/MODEL/NAME, else the folder itself."""
    above = place.parent
    if above.name == EVALUATIONS and (above.parent / "config.json").is_file():
        return above.parent
    return above if above.parent.name == EVALUATIONS else place


def _with_evaluation(run: Run, place: Path, report: Report | None) -> Run:
    if report is None:
        return replace(run, notes=(*run.notes, unfinished(place)))
    name = place.name if place.name not in run.evaluations else f"{place.parent.name}/{place.name}"
    return replace(run, evaluations={**run.evaluations, name: report}, weights=str(report.about["model"]))


def _with_advice(run: Run) -> Run:
    """With what is missing."""
    notes = list(run.notes)
    if run.best and run.best.constant:
        notes.insert(0, "constant: its weights give every validation image the same answer")
    if not (run.evaluations or run.settings):
        raise CheckpointError(f"{run.path}: {'; '.join(notes)}")
    if not run.evaluations:
        by_command = "run `atlas evaluate` on its folder, then report again"
        by_hand = "call `atlas.evaluate(..., folder=...)` and report that folder too"
        notes.append(f"not evaluated yet: {by_command if 'model' in run.settings else by_hand}")
    lacking = {"--model": run.architecture, "--data": run.data, "--eps": run.threat}
    options = [option for option, value in lacking.items() if value is None]
    if run.settings and options:
        notes.append(f"no curves, gallery and answers under attack: these need {' and '.join(options)}")
    return replace(run, notes=tuple(notes))


def _check_used(given: Given, models: Sequence[Run]) -> None:
    """Refuse an option that would change nothing, because it was meant to."""
    runs = [run for run in models if run.settings]
    lacked = {
        "--data": given.data is None or any("data" not in run.settings for run in models),
        "--model": given.model is None or any("model" not in run.settings for run in runs),
        "--eps": given.threat is None or any("threat" not in run.settings for run in runs),
    }
    for option, useful in lacked.items():
        if not useful:
            raise UsageError(f"{option} is for folders that lack it, and there is none among these: omit it")


def origin(path: Path) -> dict[str, Any]:
    """Who made the run, where that was written down beside it."""
    try:
        return dict(json.loads((path / ORIGIN).read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def _nearby(path: Path) -> str:
    """Runs and evaluations below the folder, for who named the folder above them."""
    found = sorted({each.relative_to(path).parts[0] for each in _below(path)})
    return f": did you mean {path.name}/*? It has {', '.join(found[:3])}" if found else ""


def _below(path: Path) -> list[Path]:
    """Folders with a configuration, one or two levels below."""
    return [place.parent for deep in ("*", "*/*") for place in sorted(path.glob(f"{deep}/config.json"))]


def _evaluations_in(path: Path) -> list[Path]:
    """The evaluations right below a folder that holds nothing else, or the folder itself."""
    if (path / "config.json").exists() or not path.is_dir():
        return [path]
    inside = [place for place in _below(path) if place.parent == path]
    return inside if inside and all(map(is_evaluation, inside)) else [path]


def is_evaluation(path: Path) -> bool:
    """Whether it is the folder of an evaluation."""
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


def _epochs(run: RunFolder) -> tuple[Epoch, ...]:
    found, path = list[Epoch](), run.metrics_path
    for record in run.epochs:
        number, robust, clean, jacobian = (
            _number(record, key, path) for key in ("epoch", "val_robust", "val_clean", "jacobian")
        )
        if number != len(found) or jacobian < 0:
            raise CheckpointError(
                f"{path}: expected epoch {len(found)} with a jacobian of 0 or more, got epoch {number:g} "
                f"with {jacobian:g}: the file is damaged"
            )
        marks = (record.get(key) is True for key in ("best", "collapse", "constant"))
        shares = (record.get(key) for key in ("val_majority", "val_balanced"))
        found.append(Epoch(int(number) + 1, robust, clean, jacobian, *marks, *shares))
    return tuple(found)


def _number(record: Mapping[str, Any], key: str, path: Path) -> float:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"{path}: {key} must be a number, got {value!r}: is it the file of a run?")
    return float(value) if math.isfinite(value) else math.nan


NEEDED = ("model", "data", "data_hash", "threat", "attacks", "standing", "seed", "attack_dtype", "eot")
"""What a report reads of what an evaluation says about itself."""
EVALUATIONS = "evaluations"
"""The folder in which `atlas evaluate` puts evaluations."""


def evaluations_of(
    path: Path, weights: str | None, former: str | None
) -> tuple[dict[str, Report], list[str]]:
    """The finished evaluations of these weights, in the run's folder or beside it, and what is amiss.

    `weights` is the fingerprint of the model, and `former` the one that older versions gave it.
    """
    found, notes = dict[str, Report](), []
    for place in sorted({*path.glob("*/config.json"), *path.glob(f"{EVALUATIONS}/*/config.json")}):
        folder = place.parent
        if (folder / "metrics.jsonl").exists():  # a run within a run, such as a surrogate
            continue
        if not (folder / "summary.json").exists():
            notes.append(unfinished(folder))
            continue
        report = checked_report(folder)
        if weights is not None and report.about["model"] not in (weights, former):
            notes.append(f"evaluation {folder.name} is of other weights than these and was left out")
            continue
        found[folder.name] = report
    beside = [*path.parent.glob("*/summary.json"), *_reproduced(path).glob("*/summary.json")]
    for place in sorted(beside) if weights is not None else ():
        if {weights, former} & _models_of(place.parent):
            found[place.parent.name] = checked_report(place.parent)
    if found and weights is None:
        notes.append("without the weights nobody can tell whether its evaluations are of them")
    return found, notes


def unfinished(folder: Path) -> str:
    """What is said of an evaluation without a result."""
    return f"evaluation {folder.name} has not finished: run it again to resume it"


def _reproduced(path: Path) -> Path:
    """Where `atlas reproduce` evaluates the run that it trained here."""
    return path.parent.parent / EVALUATIONS / path.name


def _models_of(folder: Path) -> set[str]:
    """Of which model an evaluation that lies beside a run is, by its files that can be read.

    By both of them, so that damage to one is found and not taken for another model.
    """
    found = set()
    for name, where in ((SUMMARY, ("about", "model")), (CONFIG, ("model",))):
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            value = json.loads((folder / name).read_bytes())
            for key in where:
                value = value[key]
            found.add(str(value))
    return found


def checked_report(folder: Path) -> Report:
    """The report of an evaluation, with all that a page reads of it; the rest is verified by its reader."""
    report = load_report(folder)
    missing = [key for key in NEEDED if key not in report.about]
    threat = report.about.get("threat")
    if not (isinstance(threat, dict) and "name" in threat and _possible(threat.get("eps"))):
        missing.append("threat with an eps of 0 or more")
    if not all(isinstance(result.table, dict) for result in report.results.values()):
        missing.append("settings of its attacks")
    if not all(map(_whole, report.flags)):
        missing.append("texts of its warnings")
    if missing:
        raise CheckpointError(f"{folder / SUMMARY} must have {', '.join(missing)}: evaluate again")
    return report


def _possible(eps: object) -> bool:
    return isinstance(eps, int | float) and not isinstance(eps, bool) and 0 <= eps < math.inf


def _whole(flag: Flag) -> bool:
    """Whether the file had what a flag needs, which nothing has checked."""
    kinds = {"name": str, "message": str, "fatal": bool}
    return all(isinstance(getattr(flag, key), kind) for key, kind in kinds.items())
