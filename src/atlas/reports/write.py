"""Write the page or the tables of a report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from atlas import data
from atlas.data import Images
from atlas.errors import AtlasError, UsageError
from atlas.evaluation import Report
from atlas.files import write_atomic
from atlas.reports import page
from atlas.reports.collect import Given, ReportedModel, load_test_images
from atlas.reports.comparison import comparisons, long_table
from atlas.reports.gallery import Kept, kept_images
from atlas.reports.quick_attack import PARTS, Settings, Study, StudyProgress, study

SUFFIXES = {
    ".html": "html",
    ".htm": "html",
    ".md": "md",
    ".tex": "latex",
    ".csv": "csv",
    ".json": "json",
}
"""The format of a file by its suffix."""
FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))


def save_report(report: Report, path: Path, name: str) -> None:
    """Write the report of one evaluation, in the format of the suffix."""
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise UsageError(f"path must end in one of {', '.join(SUFFIXES)}, got {path}")
    folder = report.folder.name if report.folder else "evaluation"
    run = ReportedModel(
        name, report.folder or path.parent, {folder: report}, weights=str(report.about["model"])
    )
    if kind == "html":
        text = page.render([run], {}, "", {name: kept_images(report)})
    elif kind == "json":
        text = json.dumps(report.summary(), indent=2) + "\n"
    else:
        text = tables([run], kind)
    write_atomic(path, text.encode())


def kept(runs: Sequence[ReportedModel], given: Given) -> dict[str, list[Kept]]:
    """Images that fool each model, of the evaluation that kept images of the most classes.

    With the originals, where the data set can be read.
    """
    return {
        run.name: max(
            (kept_images(report, _evaluated(report, run, given)) for report in run.evaluations.values()),
            key=len,
            default=[],
        )
        for run in runs
    }


def _evaluated(report: Report, run: ReportedModel, given: Given) -> Images | None:
    """The data set of an evaluation, where it can be read."""
    if report.folder is None or not any(report.folder.glob("images-*")):
        return None
    if given.data and not run.data:
        return data.load(given.data, train=False, root=given.root)
    with suppress(AtlasError):  # its name may be the caller's own, or it is not on this machine
        return data.load(run.data or str(report.about["data"]), train=False, root=given.root)
    return None


def studied(
    runs: Sequence[ReportedModel],
    settings: Settings = Settings(),
    *,
    root: Path | None = None,
    progress: bool = True,
) -> dict[str, Study]:
    """The quick attacks on all runs with weights, read from their folders or made."""
    able = [(run, run.data) for run in runs if run.model is not None and run.threat and run.data]
    images: dict[str, Images] = {}
    found = {}
    display = StudyProgress(PARTS * len(able), shown=progress)
    with display.bars:
        for run, name in able:
            if name not in images:
                images[name] = load_test_images(name, root)
            made = study(run, images[name], settings, display)
            # Evaluations see more than a quick attack does.
            fatal = [flag for report in run.evaluations.values() for flag in report.flags if flag.fatal]
            found[run.name] = replace(made, flags=tuple(dict.fromkeys([*made.flags, *fatal])))
    return found


def tables(runs: Sequence[ReportedModel], kind: str) -> str:
    """The comparisons as Markdown or LaTeX. CSV is one long table, a row per model and attack; JSON is a list
    of the summaries of all evaluations."""
    if not any(run.evaluations for run in runs):
        raise UsageError("none of these runs has been evaluated; run `atlas evaluate RUN` first")
    if kind == "csv":
        return long_table(runs).csv()
    if kind == "json":
        summaries = [
            {"model": run.name, "evaluation": folder, **report.summary()}
            for run in runs
            for folder, report in run.evaluations.items()
        ]
        return json.dumps(summaries, indent=2) + "\n"
    found = [t for c in comparisons(runs) for t in (c.table(), c.differences()) if t is not None]
    return "\n".join(table.markdown() if kind == "md" else table.latex() for table in found)
