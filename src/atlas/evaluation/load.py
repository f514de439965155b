"""Read what an evaluation has left in its folder, and refuse what cannot be its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atlas.errors import CheckpointError, DamagedError
from atlas.evaluation.flags import Flag
from atlas.evaluation.folder import SUMMARY, EvaluationFolder, slug
from atlas.evaluation.results import COLUMNS, AttackResult, Report, spent


def load_report(path: Path) -> Report:
    """The report of a finished evaluation.

    Every file is verified: its checksum (older versions wrote none), that it belongs to this evaluation, and
    that its values are possible and agree with those of the other files.
    """
    place = EvaluationFolder(path)
    if not (path / SUMMARY).exists() and (inside := sorted(path.glob(f"evaluations/*/{SUMMARY}"))):
        names = ", ".join(str(each.parent) for each in inside)
        raise CheckpointError(f"{path} is a run; name one of its evaluations: {names}")
    try:
        if not (path / SUMMARY).exists():
            raise FileNotFoundError(f"it has no {SUMMARY}")
        summary = place.load_summary()
        clean = _columns(place, "clean")
        results = {
            label: _result(label, about, _columns(place, f"attack-{slug(label)}"))
            for label, about in summary["attacks"].items()
        }
        flags = [Flag(**flag) for flag in summary["flags"]]
        columns = (clean["ids"], clean["y"], clean["right"])
        called = tuple(map(str, summary.get("class_names", ())))
        report = Report(summary["about"], *columns, results, flags, place.times(), called, path)
        _check_clean(path / "clean.npz", clean)
        _check_attacks(path, report)
        _check_summary(path / SUMMARY, summary, report)
    except DamagedError as error:
        raise DamagedError(f"{error}; run the evaluation there again") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} holds no finished evaluation ({type(error).__name__}: {error}); run it to the end, "
            "and name the folder that it wrote to"
        ) from error
    return report


def _columns(place: EvaluationFolder, name: str) -> dict[str, Tensor]:
    columns = place.load_columns(name)
    if columns is None:
        raise CheckpointError(f"{place.path / name}.npz is missing; run the evaluation there again")
    return columns


def _result(label: str, about: dict[str, Any], columns: dict[str, Tensor]) -> AttackResult:
    values = (columns[name] for name in COLUMNS)
    return AttackResult(
        label, about["attack"], about["white_box"], about["steps"], about["attempts"], *values
    )


def _check_clean(path: Path, clean: dict[str, Tensor]) -> None:
    ids, y, right = clean["ids"], clean["y"], clean["right"]
    kinds = {"ids": torch.int64, "y": torch.int64, "right": torch.bool}
    if any(clean[name].dtype != kind or clean[name].shape != (len(y),) for name, kind in kinds.items()):
        raise _impossible(path, "has columns of other types or lengths than those of clean images")
    if not len(y) or int(y.min()) < 0 or len(set(ids.tolist())) < len(ids):
        raise _impossible(path, "has no images, negative labels, or an image twice")
    logits = clean.get("logits")  # which an older version did not keep
    if logits is not None and not torch.equal(logits.argmax(1) == y, right):
        raise _impossible(path, "has verdicts that do not follow from its logits")


def _check_attacks(path: Path, report: Report) -> None:
    tried = torch.ones_like(report.clean_right)
    for label, result in report.results.items():
        if problem := result.problem(report.clean_right, tried):
            raise _impossible(path / f"attack-{slug(label)}.npz", problem)
        if report.about["standing"]:
            tried = tried & result.survived


def _check_summary(path: Path, summary: dict[str, Any], report: Report) -> None:
    """Its counts have to follow from the verdicts."""
    counts = {label: int(report.right_under(label).sum()) for label in report.results}
    counts |= {"clean": int(report.clean_right.sum()), "worst case": int(report.robust.sum())}
    for label, score in summary["accuracy"].items():
        told = {key: score[key] for key in ("right", "n") if key in score}
        if told and told != {"right": counts[label], "n": report.n}:
            verdicts = f"{counts[label]} of {report.n}"
            raise _impossible(path, f"has {told} for {label}, and the verdicts have {verdicts}")
    for label, result in report.results.items():
        found, told = spent(result), summary["attacks"][label]
        if any(told[key] != found[key] for key in {*told} & {*found}):
            raise _impossible(path, f"has counts for {label} that do not follow from the verdicts")
    if summary["n"] != report.n or report.about.get("n", report.n) != report.n:
        raise _impossible(path, f"has n = {summary['n']}, and there are verdicts on {report.n} images")


def _impossible(path: Path, what: str) -> DamagedError:
    return DamagedError(f"{path} {what}: it is damaged or belongs to another evaluation")
