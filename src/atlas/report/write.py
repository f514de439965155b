"""From folders of runs to a page, tables or plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from atlas import data
from atlas.data import Images
from atlas.errors import DataError, UsageError
from atlas.report.attacked import PARTS, study
from atlas.report.collect import Run
from atlas.report.comparison import comparisons, long_table
from atlas.report.display import Display
from atlas.report.study import Settings, Study

FORMATS = ("html", "md", "latex", "csv")


def studied(
    runs: Sequence[Run], settings: Settings = Settings(), *, root: Path | None = None, progress: bool = True
) -> dict[str, Study]:
    """The studies of all runs whose weights are at hand, made where they are not known yet."""
    able = [run for run in runs if run.model is not None]
    images: dict[str, Images] = {}
    found = {}
    display = Display(PARTS * len(able), shown=progress)
    with display.bars:
        for run in able:
            name = run.config.data
            if name not in images:
                images[name] = _test_images(name, root)
            found[run.name] = _doubted(study(run, images[name], settings, display), run)
    return found


def _doubted(made: Study, run: Run) -> Study:
    """With the fatal flags of the run's evaluations, which saw more than a quick look does."""
    fatal = [flag for report in run.evaluations.values() for flag in report.flags if flag.fatal]
    return replace(made, flags=tuple(dict.fromkeys([*made.flags, *fatal])))


def _test_images(name: str, root: Path | None) -> Images:
    try:
        return data.load(name, train=False, root=root)
    except DataError as error:
        raise DataError(f"{error}; or leave out what needs images (--no-attack)") from error


def tables(runs: Sequence[Run], kind: str) -> str:
    """The comparisons as Markdown, LaTeX or CSV. CSV is one long table, a row a model and attack."""
    if not any(run.evaluations for run in runs):
        raise UsageError("none of these runs has been evaluated; run `atlas evaluate RUN` first")
    if kind == "csv":
        return long_table(runs).csv()
    found = [t for c in comparisons(runs) for t in (c.table(), c.differences()) if t is not None]
    return "\n".join(table.markdown() if kind == "md" else table.latex() for table in found)
