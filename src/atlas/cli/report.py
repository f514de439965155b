"""`atlas report`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from atlas.cli.console import Root
from atlas.config import number
from atlas.errors import UsageError, choose, unknown
from atlas.files import write_atomic
from atlas.terminal import Terminal
from atlas.threat import THREATS


def report(
    folders: Annotated[
        list[Path],
        Argument(metavar="FOLDER", help="Folders of runs or evaluations: runs/demo/demo-*, evaluations/*."),
    ],
    out: Annotated[
        Path | None,
        Option("--out", "-o", help="The file to write; default: report.html, tables to the terminal."),
    ] = None,
    kind: Annotated[
        str | None,
        Option(
            "--format",
            help="html, or only the comparison as md, latex, csv or json; default: by the suffix of --out, "
            "else html.",
        ),
    ] = None,
    plots: Annotated[Path | None, Option(help="Also write plots for papers (PDF, SVG, PNG) here.")] = None,
    n: Annotated[int, Option(help="Test images for the quick attack of the report.")] = 200,
    steps: Annotated[int, Option(help="Steps of that attack.")] = 20,
    no_attack: Annotated[
        bool, Option("--no-attack", help="Omit that attack, and with it curves, gallery and confusions.")
    ] = False,
    data: Annotated[str | None, Option(help="If a folder does not state it: a name or path.")] = None,
    model: Annotated[str | None, Option(help="If a run names none: a name or module.path:factory.")] = None,
    eps: Annotated[str | None, Option(help="The radius, if a run does not state it, such as 8/255.")] = None,
    norm: Annotated[str, Option(help="The norm that goes with --eps: linf or l2.")] = "linf",
    root: Root = None,
) -> None:
    """Put models side by side on one page that can be looked at, sent and printed.

    - `atlas report runs/mnist-* -o report.html` : one self-contained file, no network
    - `atlas report evaluations/*` : models that were only evaluated
    - `atlas report runs/mine --model my.module:network --data my.npz` : a run by atlas.fit
    - `atlas report runs/mnist-* --format latex` : the comparison for a paper (`booktabs`)
    - `atlas report runs/mnist-* --no-attack --plots figures/`

    The table is made of the evaluations in the folders (`atlas evaluate RUN` first). Curves by radius and
    steps, the gallery and the predictions under attack come from a quick attack on --n images of each run,
    which is stored in the run's folder, so the next report is instant. The folder of an
    evaluation holds no model to attack: it gives table, warnings, classes and the images it has kept.
    """
    from atlas.reports import write
    from atlas.reports.collect import Given, collect
    from atlas.reports.gallery import kept_by_model
    from atlas.reports.plots import save_figures
    from atlas.reports.quick_attack import grouped, studied

    suffix = "" if out is None else out.suffix.lower()
    meant = write.SUFFIXES.get(suffix)
    kind = kind or meant or "html"
    if kind not in write.FORMATS:
        raise unknown("format", kind, write.FORMATS)
    if meant not in (None, kind):
        raise UsageError(f"--out {out} is a {suffix} file, but --format is {kind}: omit one of them")
    if out is not None and out.is_dir():
        raise UsageError(f"--out must be a file, such as {out / 'report.html'}, but {out} is a folder")
    threat = None if eps is None else choose("norm", norm, THREATS)(number(eps))
    given = Given(data, model, threat, root)
    found = collect(folders, given)
    for run in found:
        for note in run.notes:
            _say(f"{run.name}: {note}", style="yellow")
    attack = not no_attack and (kind == "html" or plots is not None)
    studies = studied(found, n, steps, root=root) if attack else {}
    if plots is not None:
        files = save_figures(plots, found, grouped(studies))
        _say(f"{len(files)} plots in {plots}")
    if kind == "html":
        out = out or Path("report.html")
        kept = kept_by_model([run for run in found if run.name not in studies], given)
        text = write.page(found, studies, shlex.join(["atlas", *sys.argv[1:]]), kept)
    else:
        text = write.tables(found, kind)
    if out is None:
        sys.stdout.write(text)
        return
    write_atomic(out, text.encode())
    _say(f"{out}: {len(text.encode()) / 1024:,.0f} KB, {len(found)} model{'s' if len(found) > 1 else ''}")


def _say(text: str, style: str | None = None) -> None:
    """On the error stream, because the output may be a table for another program."""
    Terminal(stderr=True).say(text, style)
