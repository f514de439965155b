"""The finished evaluations of a run's weights, found in its folder or beside it, and checked to be whole."""

from __future__ import annotations

import json
from pathlib import Path

from atlas.errors import CheckpointError
from atlas.evaluation import Flag, Report
from atlas.evaluation.load import load_report

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
        if not (place.parent / "metrics.jsonl").exists() and _model_of(place) in (weights, former):
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


def _model_of(summary: Path) -> object:
    """Of which model an evaluation that lies beside a run is; nothing where it is no evaluation."""
    try:
        return json.loads(summary.read_text())["about"]["model"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def checked_report(folder: Path) -> Report:
    """The report of an evaluation whose parts belong together."""
    report = load_report(folder)
    missing = [key for key in NEEDED if key not in report.about]
    threat = report.about.get("threat")
    if not (isinstance(threat, dict) and "name" in threat and isinstance(threat.get("eps"), int | float)):
        missing.append("its threat")
    if not all(isinstance(result.table, dict) for result in report.results.values()):
        missing.append("its attacks")
    if not all(isinstance(text, str) for flag in report.flags for text in _texts(flag)):
        missing.append("its flags")
    lengths = {label: len(result.attempt) for label, result in report.results.items()}
    torn = [label for label, length in lengths.items() if length != report.n]
    if missing or torn or len(report.ids) != report.n or len(report.clean_right) != report.n or not report.n:
        what = f"says nothing of {missing}" if missing else f"has parts of different lengths {torn}"
        raise CheckpointError(f"{folder} is no whole evaluation: it {what}; run it again")
    return report


def _texts(flag: Flag) -> tuple[object, object]:
    """What the file had for its texts."""
    return flag.name, flag.message
