"""Measurements as text and figures: one table writer for terminals and Markdown, one kind of chart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from rich.cells import cell_len
from rich.table import Table

from atlas.errors import UsageError
from atlas.files import write_atomic
from atlas.reports import plots
from atlas.terminal import Terminal

NOTE = "note"
"""The heading of a last column of text, which wraps in a terminal."""
NOTE_WIDTH, LONGEST_NOTE = 20, 60
GRAY = "#777777"


@dataclass(frozen=True)
class TextTable:
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


Blocks = list[str | TextTable]
"""A page: paragraphs in Markdown, and tables."""


def quartiles(values: Any) -> list[float]:
    """[25%, median, 75%]."""
    return [float(q) for q in np.quantile(values, (0.25, 0.5, 0.75))]


def over(seconds: Sequence[float], others: Sequence[float]) -> list[float] | None:
    """Quartiles of the ratios of the repeats that both have; None if there is none."""
    both = min(len(seconds), len(others))
    return quartiles(np.array(seconds[:both]) / np.array(others[:both])) if both else None


def ratio(found: Sequence[float] | None) -> str:
    """Quartiles as "median [25%, 75%]"; a dash for none."""
    return "-" if found is None else "{1:.2f} [{0:.2f}, {2:.2f}]".format(*found)


def milliseconds(seconds: Any) -> str:
    """The median; a dash for none."""
    return f"{1e3 * np.median(seconds):.1f}" if np.size(seconds) else "-"


def note_of(contestant: Mapping[str, Any]) -> str:
    """A contestant's note, or why it was not timed."""
    text = str(contestant.get(NOTE, contestant.get("how")))  # its name in older files
    if error := contestant["error"]:
        text = error if error == "not installed" else f"failed: {' '.join(error.split())}"
    return text if len(text) <= LONGEST_NOTE else f"{text[: LONGEST_NOTE - 3]}..."


def machine_facts(report: Mapping[str, Any]) -> str:
    m = report["machine"]
    return f"{m['device']} ({m['cpu']}, {m['cores']} cores, {m['threads']} threads), torch {m['torch']}"


def facts(report: Mapping[str, Any]) -> str:
    """The circumstances of a measurement on one line."""
    batch = f"batch {report['batch']}, " if "batch" in report else ""
    settings = "".join(f", {key} = {value}" for key, value in (report.get("settings") or {}).items())
    versions = ", ".join(f"{name} {found or 'absent'}" for name, found in report.get("peers", {}).items())
    return (
        f"{machine_facts(report)}, {batch}median [quartiles] of {report['repeats']} repeats, load average "
        f"before the start {report['machine']['load_before']}{settings}"
        + (f"; {versions}" if versions else "")
    )


def model_heading(model: Mapping[str, Any]) -> str:
    return f"**{model['model']}**, {'x'.join(map(str, model['shape']))}"


def save(report: Mapping[str, Any], path: Path) -> None:
    """Write a report as JSON."""
    write_atomic(path, (json.dumps(report, indent=1) + "\n").encode())


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, ("---",) * len(headings), *rows))


def markdown(blocks: Blocks) -> str:
    return "\n\n".join(b if isinstance(b, str) else grid(b.headings, b.rows) for b in blocks)


def markers_of(name: str) -> tuple[str, str]:
    """The lines of a page between which the table of this name goes."""
    return f"<!-- begin: {name} -->", f"<!-- end: {name} -->"


def check_markers(path: Path, begin: str, end: str) -> None:
    """Refuse a file without the two marker lines."""
    text = path.read_text() if path.is_file() else ""
    if not (text.count(begin) == text.count(end) == 1 and text.index(begin) < text.index(end)):
        raise UsageError(f"{path} must have the lines {begin} and {end} once each, in this order: add them")


def put_between_markers(path: Path, text: str, begin: str, end: str) -> None:
    """Replace what the file has between the two marker lines."""
    check_markers(path, begin, end)
    before, _, rest = path.read_text().partition(begin)
    after = rest.partition(end)[2]
    write_atomic(path, f"{before}{begin}\n{text}\n{end}{after}".encode())


def show(blocks: Blocks, console: Terminal) -> None:
    """Print a page. A table that is too wide continues below, its first column repeated."""
    for block in blocks:
        if isinstance(block, str):
            console.print(f"{block.replace('**', '')}\n")
            continue
        first, *columns = zip(block.headings, *block.rows, strict=True)
        part = [first]
        for column in columns:
            if sum(map(_width, [*part, column])) > console.width and len(part) > 1:
                console.print(_text(part))
                part = [first]
            part.append(column)
        console.print(_text(part))


def _width(column: Sequence[str]) -> int:
    return 1 + (NOTE_WIDTH if column[0] == NOTE else max(map(cell_len, column)))


def _text(columns: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for number, (heading, *_) in enumerate(columns):
        right = number > 0 and heading != NOTE
        table.add_column(heading, justify="right" if right else "left", no_wrap=heading != NOTE)
    for row in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*row)
    table.add_row()
    return table


@dataclass(frozen=True)
class ChartPanel:
    """Lines against a logarithmic axis."""

    across: str
    title: str = ""
    lines: list[tuple[Sequence[float], Sequence[float], str, dict[str, Any]]] = field(default_factory=list)

    def add(
        self, x: Sequence[float], y: Sequence[float], line: str, name: str, number: int | None = None
    ) -> None:
        """A line in matplotlib's notation; dashed ones have hollow markers. Without a number it is gray."""
        color = GRAY if number is None else plots.PALETTE[number % len(plots.PALETTE)]
        look = {
            "color": color,
            "mfc": "none" if "--" in line else color,
            "lw": 0.8 if number is None else 1.3,
        }
        self.lines.append((x, y, line, {**look, "label": plots.label(name) if name else "_"}))


def chart(panels: Sequence[ChartPanel], up: str, *, height: float = 2.8, log_y: bool = True) -> Figure:
    """Panels side by side, with one legend."""
    figure, axes = plots.subplots(1, len(panels), width=plots.DOUBLE, height=height, squeeze=False)
    for ax, panel in zip(axes.flat, panels, strict=True):
        for x, y, line, look in panel.lines:
            ax.plot(x, y, line, **look)
        ax.set(xlabel=plots.label(panel.across), title=plots.label(panel.title), xscale="log")
        ax.set_yscale("log" if log_y else "linear")
        for axis in (ax.xaxis, ax.yaxis) if log_y else (ax.xaxis,):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_locator(NullLocator())
    axes[0, 0].set_ylabel(up)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=min(6, len(handles)))
    return figure
