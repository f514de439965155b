"""The finished evaluations of a run's weights, found in its folder or beside it, and checked to be whole."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path

from atlas.errors import CheckpointError
from atlas.evaluation import Flag, Report
from atlas.evaluation.folder import CONFIG, SUMMARY
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
