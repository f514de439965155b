"""`atlas report`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from atlas.cli.console import Root
from atlas.disk import write_atomic
from atlas.errors import UsageError, unknown
from atlas.terminal import Terminal

SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".tex": "latex", ".csv": "csv"}
"""What a file of such a name is taken to be."""


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of runs, such as runs/demo/demo-*.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write; default: report.html, tables to the terminal."),
    ] = None,
    kind: Annotated[
        str, typer.Option("--format", help="html, or only the comparison as md, latex or csv.")
    ] = "html",
    plots: Annotated[
        Path | None, typer.Option(help="Also write plots for papers (PDF, SVG, PNG) into this folder.")
    ] = None,
    n: Annotated[int, typer.Option(help="Test images for the report's own quick attack.")] = 200,
    steps: Annotated[int, typer.Option(help="Steps of that attack.")] = 20,
    no_attack: Annotated[
        bool, typer.Option("--no-attack", help="Leave it out, and curves, gallery and answers with it.")
    ] = False,
    root: Root = None,
) -> None:
    """Put runs side by side on one page that can be looked at, sent and printed.

    - `atlas report runs/mnist-* -o report.html` : one self-contained file, no network
    - `atlas report runs/mnist-* --format latex` : the comparison for a paper (`booktabs`)
    - `atlas report runs/mnist-* --no-attack --plots figures/`

    The table is made of the evaluations in the runs' folders (`atlas evaluate RUN` first). Curves by radius
    and steps, the gallery and the answers under attack come from a quick attack of the report's own on --n
    images; what it finds is kept in the run's folder, so the next report is instant.
    """
    from atlas.report import figures, page, write
    from atlas.report.collect import collect
    from atlas.report.study import Settings, grouped

    if kind not in write.FORMATS:
        raise unknown("format", kind, write.FORMATS)
    suffix = "" if out is None else out.suffix.lower()
    if kind != SUFFIXES.get(suffix, kind):
        raise UsageError(f"--out {out} is a {suffix} file, and the format is {kind}: give --format too")
    if out is not None and out.is_dir():
        raise UsageError(f"--out {out} is a folder; wanted a file, such as {out / 'report.html'}")
    found = collect(runs)
    for run in found:
        for note in run.notes:
            _say(f"{run.name}: {note}", style="yellow")
    wanted = not no_attack and (kind == "html" or plots is not None)
    studies = write.studied(found, Settings(n, steps), root=root) if wanted else {}
    if plots is not None:
        files = figures.save_figures(plots, found, grouped(studies))
        _say(f"{len(files)} plots in {plots}")
    if kind == "html":
        out = out or Path("report.html")
        text = page.render(found, studies, shlex.join(["atlas", *sys.argv[1:]]))
    else:
        text = write.tables(found, kind)
    if out is None:
        sys.stdout.write(text)
        return
    write_atomic(out, text.encode())
    _say(f"{out}: {len(text.encode()) / 1024:,.0f} KB, {len(found)} model{'s' if len(found) > 1 else ''}")


def _say(text: str, style: str | None = None) -> None:
    """On the error stream, because the output may be a table for another program."""
    Terminal(stderr=True).print(text, style=style, soft_wrap=True)
