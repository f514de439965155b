"""From models to a page, tables or plots."""

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
from atlas.reports.collect import Given, Run, load_test_images
from atlas.reports.comparison import comparisons, long_table
from atlas.reports.gallery import Kept, kept_images
from atlas.reports.quick_attack import PARTS, Display, Settings, Study, study

SUFFIXES = {
    ".html": "html",
    ".htm": "html",
    ".md": "md",
    ".tex": "latex",
    ".csv": "csv",
    ".json": "json",
}
"""What a file of such a name is taken to be."""
FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))


def save_report(report: Report, path: Path, name: str) -> None:
    """Write the report of one evaluation, in the format of the suffix."""
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise UsageError(f"path must end in one of {', '.join(SUFFIXES)}, got {path}")
    folder = report.folder.name if report.folder else "evaluation"
    run = Run(name, report.folder or path.parent, {folder: report}, weights=str(report.about["model"]))
    if kind == "html":
        text = page.render([run], {}, "", {name: kept_images(report)})
    elif kind == "json":
        text = json.dumps(report.summary(), indent=2) + "\n"
    else:
        text = tables([run], kind)
    write_atomic(path, text.encode())


def kept(runs: Sequence[Run], given: Given) -> dict[str, list[Kept]]:
    """Images that fool each model, from that of its evaluations that kept images of the most classes.

    With the originals, where the data set can be read.
    """
    found = {}
    for run in runs:
        galleries = [
            kept_images(report, _evaluated(report, run, given)) for report in run.evaluations.values()
        ]
        found[run.name] = max(galleries, key=len, default=[])
    return found


def _evaluated(report: Report, run: Run, given: Given) -> Images | None:
    """The data set of an evaluation, where it can be read."""
    if report.folder is None or not any(report.folder.glob("images-*")):
        return None
    if given.data and not run.data:
        return data.load(given.data, train=False, root=given.root)
    with suppress(AtlasError):  # it may have only a name of its own, or not be on this machine
        return data.load(run.data or str(report.about["data"]), train=False, root=given.root)
    return None


def studied(
    runs: Sequence[Run], settings: Settings = Settings(), *, root: Path | None = None, progress: bool = True
) -> dict[str, Study]:
    """The studies of all runs whose weights are at hand, made where they are not known yet."""
    able = [(run, run.data) for run in runs if run.model is not None and run.threat and run.data]
    images: dict[str, Images] = {}
    found = {}
    display = Display(PARTS * len(able), shown=progress)
    with display.bars:
        for run, name in able:
            if name not in images:
                images[name] = load_test_images(name, root)
            found[run.name] = _doubted(study(run, images[name], settings, display), run)
    return found


def _doubted(made: Study, run: Run) -> Study:
    """With the fatal flags of the run's evaluations, which saw more than a quick look does."""
    fatal = [flag for report in run.evaluations.values() for flag in report.flags if flag.fatal]
    return replace(made, flags=tuple(dict.fromkeys([*made.flags, *fatal])))


def tables(runs: Sequence[Run], kind: str) -> str:
    """The comparisons as Markdown or LaTeX. CSV is one long table, a row per model and attack; JSON is a list
    of the summaries of all evaluations."""
    if not any(run.evaluations for run in runs):
        raise UsageError("none of these runs has been evaluated; run `atlas evaluate RUN` first")
    if kind == "csv":
        return long_table(runs).csv()
    if kind == "json":
        return json.dumps(_summaries(runs), indent=2) + "\n"
    found = [t for c in comparisons(runs) for t in (c.table(), c.differences()) if t is not None]
    return "\n".join(table.markdown() if kind == "md" else table.latex() for table in found)


def _summaries(runs: Sequence[Run]) -> list[dict[str, object]]:
    return [
        {"model": run.name, "evaluation": folder, **report.summary()}
        for run in runs
        for folder, report in run.evaluations.items()
    ]
