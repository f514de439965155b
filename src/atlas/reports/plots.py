"""Plots: the style of plots for papers, the curves of a report, and SVG that follows the theme of a page."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from atlas.files import write_atomic
from atlas.reports.collect import ReportedModel
from atlas.reports.quick_attack import STEPS, Study, valid
from atlas.reports.tables import Cell, Table
from atlas.terminal import one_line
from atlas.threat import eps_text

SINGLE, DOUBLE = 3.25, 6.75
"""Inches: one column of a two-column paper, and both."""
STYLE, PAGE_STYLE = (
    matplotlib.rc_params_from_file(Path(__file__).parent / "templates" / name, use_default_template=False)
    for name in ("plots.mplstyle", "page.mplstyle")
)
PALETTE: tuple[str, ...] = tuple(STYLE["axes.prop_cycle"].by_key()["color"])
MARKERS = "osD^vPX"
"""They differ as the colours do, for print in gray. Further curves are dashed, with hollow markers."""
GRID, INK, SOFT = STYLE["grid.color"], PAGE_STYLE["text.color"], PAGE_STYLE["xtick.color"]
BAD, PAPER = "#b3261e", "#ffffff"
LONGEST = 40
"""Characters of a name in a legend: what fits below one column."""
MOST_DOTS = 40
"""Longer curves have markers at evenly spaced points only."""
MOST_BANDS = 4
"""The intervals of more curves would hide each other, and are left to the values below the chart."""
UNDATED: Any = {
    "pdf": dict.fromkeys(("CreationDate", "Producer", "Creator")),
    "svg": dict.fromkeys(("Date", "Creator")),
    "png": {"Software": None},
}
"""For each format what savefig is told not to write: neither dates nor versions."""
FORMATS = tuple(UNDATED)
THEME = {colour.lower(): f"var(--c{k})" for k, colour in enumerate(PALETTE)} | {
    GRID: "var(--grid)",
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    BAD: "var(--bad)",
    PAPER: "var(--page)",
}
"""The variable of the page's style for each colour, so that charts follow its light and dark theme."""


@contextmanager
def style() -> Iterator[None]:
    """Draw within this; the settings from before are restored."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def subplots(
    rows: int = 1, columns: int = 1, *, width: float = SINGLE, height: float | None = None, **options: Any
) -> tuple[Figure, Any]:
    """A figure and its axes, `width` inches wide; within `style()`. As pyplot's, but leaves nothing open."""
    figure = Figure(figsize=(width, height or width / columns * 0.72 * rows))
    return figure, figure.subplots(rows, columns, **options)


def label(text: str) -> str:
    """Text for a label or a legend as it is: dollars start no formula, an underscore hides no line."""
    shown = one_line(text).replace("$", r"\$")
    return f"\N{THIN SPACE}{shown}" if shown.startswith("_") else shown


def save(figure: Figure, path: Path) -> list[Path]:
    """Write path.pdf, path.svg and path.png, each atomically, the same bytes for the same figure."""
    written = [path.with_name(f"{path.name}.{kind}") for kind in FORMATS]
    for place in written:
        write_atomic(place, rendered(figure, place.suffix[1:]))
    return written


def rendered(figure: Figure, kind: str) -> bytes:
    """The figure as a file of this kind."""
    buffer = io.BytesIO()
    with style():
        figure.savefig(buffer, format=kind, metadata=UNDATED[kind])
    return buffer.getvalue()


@dataclass(frozen=True)
class Curve:
    """One curve of a chart; points without a value are not drawn."""

    run: str
    index: int
    """Of the run, which has a colour and a marker."""
    points: Sequence[tuple[float, Cell]]
    what: str = ""
    """Which of the run's curves this is, if there are several."""
    faint: bool = False
    """Without markers, beside another curve of the run."""
    marks: Mapping[str, float] = field(default_factory=dict)
    """Where the "best" epoch and a "collapse" are, along x."""

    @property
    def label(self) -> str:
        return ", ".join(filter(None, [self.run, self.what]))


@dataclass(frozen=True)
class Chart:
    """Curves over a common axis."""

    name: str
    """Of its file; unique on a page."""
    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    x_text: Callable[[float], str]
    """A value of x in words."""
    x_limits: tuple[float, float]
    x_ticks: Sequence[float] = ()
    """Of a logarithmic x axis; none of a linear one."""
    y_log: bool = False
    """Else y is in percent."""
    guide: float | None = None
    """Where a vertical line is, with its x in words above it."""

    @property
    def values(self) -> Table:
        """Its numbers."""
        cells = [dict(curve.points) for curve in self.curves]
        rows = [
            [self.x_text(x), *(each.get(x, "") for each in cells)]
            for x in sorted({x for each in cells for x in each})
        ]
        return Table.of(self.title, [self.x_label, *(curve.label for curve in self.curves)], rows)

    def draw(self, axes: Any, labels: Mapping[str, str]) -> dict[str, list[str]]:
        """Draw within `style()`, with these labels of runs; the tooltips of markers, by the artist's gid."""
        hints: dict[str, list[str]] = {}
        for number, curve in enumerate(self.curves):
            points = {x: cell for x, cell in curve.points if cell.value is not None}
            x, y = list(points), [cell.value for cell in points.values()]
            look, every = _look(curve.index), max(1, math.ceil(len(points) / MOST_DOTS))
            if len(self.curves) <= MOST_BANDS and all(cell.interval for cell in points.values()):
                low, high = zip(*map(_ends, points.values()), strict=True)
                axes.fill_between(x, low, high, color=look["color"], alpha=0.14, lw=0, gid="band:0")
            if curve.faint:
                axes.plot(x, y, **{**look, "marker": ""}, alpha=0.4, gid=f"faint:{number}")
                continue
            named = {"label": labels.get(curve.run, ""), "gid": f"line:{number}"}
            axes.plot(x, y, **look, **named, markevery=every, clip_on=False)
            hints[f"line:{number}"] = [self._hint(curve, at, points[at]) for at in x[::every]]
            for kind, at in curve.marks.items():
                if at in points:
                    _draw_mark(axes, kind, at, points[at].value, look["color"], f"{kind}:{number}")
                    hints[f"{kind}:{number}"] = [self._hint(curve, at, points[at], f", {kind}")]
        self._draw_axes(axes)
        return hints

    def _hint(self, curve: Curve, x: float, cell: Cell, kind: str = "") -> str:
        return f"{curve.label}{kind}: {self.x_text(x)}: {cell.text} {cell.bounds}".rstrip()

    def _draw_axes(self, axes: Any) -> None:
        number = FuncFormatter(lambda value, _: f"{value:g}")
        axes.set(xlabel=self.x_label, ylabel=self.y_label)
        if self.x_ticks:
            axes.set(xscale="log", xticks=self.x_ticks)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(7, integer=self.x_limits[1] > 1, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(number)
        axes.set(xlim=self.x_limits)
        ends = [
            end for curve in self.curves for _, c in curve.points if c.value is not None for end in _ends(c)
        ]
        low, high = min(ends, default=1.0), max(ends, default=1.0)
        if self.y_log:
            bottom = math.floor(math.log10(low)) if low > 0 else 0
            axes.set(yscale="log", ylim=(10.0**bottom, 10.0 ** max(bottom + 1, math.ceil(math.log10(high)))))
            axes.yaxis.set_major_formatter(number)
        else:  # the upper part, if it has everything
            bottom = 10 * math.floor(low / 10) if low > 50 and self.x_ticks else 0
            axes.set(ylim=(bottom, 100))
            axes.yaxis.set_major_locator(MultipleLocator(20 if bottom < 70 else 10))
        axes.minorticks_off()
        if self.guide is not None:
            axes.axvline(self.guide, color=SOFT, lw=0.8, ls=(0, (2, 3)), gid="guide:0")
            where: Any = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
            axes.text(self.guide, 1.01, self.x_text(self.guide), **where, color=SOFT, gid="guide-text:0")

    @property
    def svg(self) -> Markup:
        """For a page: text as text, colours of its theme, no style attributes, which its policy forbids."""
        with matplotlib.rc_context({**STYLE, **PAGE_STYLE}):
            figure = Figure(figsize=(460 / 72, 280 / 72))
            left = 0.19 if self.y_log else 0.12
            axes = figure.add_axes((left, 0.165, 0.97 - left, 0.765))
            axes.patch.set_visible(False)
            figure.patch.set_visible(False)
            hints = self.draw(axes, {})
        return _for_page(ET.fromstring(rendered(figure, "svg")), self.name, self.title, hints)


def _look(index: int) -> dict[str, Any]:
    """Colour, marker and line of a curve."""
    colour, dashed = PALETTE[index % len(PALETTE)], index >= len(PALETTE)
    marker = {"marker": MARKERS[index % len(MARKERS)], "markerfacecolor": PAPER if dashed else colour}
    return {"color": colour, "linestyle": "--" if dashed else "-", **marker}


def _ends(cell: Cell) -> tuple[float, float]:
    """The interval of a value, or the value twice."""
    return cell.interval or (cell.value or 0.0, cell.value or 0.0)


def _draw_mark(axes: Any, kind: str, x: float, y: float | None, colour: str, gid: str) -> None:
    """A ring around the best epoch; a cross where the model collapsed."""
    size = 1.9 * matplotlib.rcParams["lines.markersize"]
    if kind == "best":
        axes.plot([x], [y], "o", markersize=size, markerfacecolor="none", color=colour, gid=gid)
        return
    axes.plot([x], [y], "x", markersize=size, markeredgewidth=2, color=BAD, zorder=5, gid=gid)
    left = x > 0.8 * axes.dataLim.x1  # on the right the text would leave the chart
    where: Any = {"xytext": (-8 if left else 8, 8), "textcoords": "offset points"}
    axes.annotate(kind, (x, y), **where, ha="right" if left else "left", color=BAD, gid="collapse-text:0")


def _for_page(root: ET.Element, name: str, title: str, hints: Mapping[str, Sequence[str]]) -> Markup:
    """matplotlib's SVG as part of a page.

    Ids of the form `kind:number` become classes; those that are referred to begin with `name`, and the others
    go. Properties of style attributes become attributes, in the colours of the theme; fonts are the page's.
    """
    for node in root.iter():
        node.tag, node.tail = node.tag.rpartition("}")[2], None
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in ("metadata", "style", "clipPath")]:
            parent.remove(child)
    used = {value[1:] for node in root.iter("use") for key, value in node.items() if key.endswith("href")}
    for node in root.iter():
        gid = node.get("id", "")
        for hint, marker in zip(hints.get(gid, ()), node.iter("use"), strict=False):
            ET.SubElement(marker, "title").text = hint
        styles = [part.partition(":") for part in node.attrib.pop("style", "").split(";") if ":" in part]
        given = dict(node.attrib) | {key.strip(): value.strip() for key, _, value in styles}
        node.attrib = {"class": gid.partition(":")[0]} if ":" in gid else {}
        for key, value in given.items():
            key = key.rpartition("}")[2]
            if key == "id" and value in used:
                node.set("id", f"{name}-{value}")
            elif key == "href":
                node.set("href", f"#{name}-{value[1:]}")
            elif not (key in ("id", "clip-path") or key.startswith("font") or value.startswith("rotate(-0 ")):
                node.set(key, THEME.get(value.lower()) or _short(value))
        if node.tag not in ("text", "title"):
            node.text = None
    root.attrib = {"viewBox": root.attrib["viewBox"], "class": "chart", "role": "img", "aria-label": title}
    return Markup(ET.tostring(root, encoding="unicode"))


def _short(value: str) -> str:
    """An attribute with fewer digits, and paths without needless spaces."""
    value = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.4g}", value)
    return re.sub(r"\s*([MLCQzZ])\s*", r"\1", value)


def colour_class(index: int) -> str:
    """The class of the page's style with the colour of a run."""
    return f"s{index % len(PALETTE)}"


def swatch(index: int) -> Markup:
    """The marker of a curve, to stand before its run's name."""
    marker = MarkerStyle(MARKERS[index % len(MARKERS)])
    path = marker.get_path().transformed(marker.get_transform())
    letters = {1: "M", 2: "L", 4: "C", 79: "Z"}
    steps = [
        letters[int(code)] + ("" if code == 79 else " ".join(f"{100 * value:.0f}" for value in points))
        for points, code in path.iter_segments()
    ]
    kind = f"swatch {colour_class(index)}" + (" dashed" if index >= len(PALETTE) else "")
    root = ET.Element("svg", {"viewBox": "-70 -70 140 140", "class": kind, "aria-hidden": "true"})
    ET.SubElement(root, "path", {"d": "".join(steps), "transform": "scale(1 -1)"})
    return Markup(ET.tostring(root, encoding="unicode"))


def study_charts(studies: Mapping[str, Study], colours: Mapping[str, int], end: str = "") -> list[Chart]:
    """Robust accuracy against the radius and against the steps of the quick attack, of valid studies.

    `end` ends the names of the charts.
    """
    sound, eps = valid(studies), next(iter(studies.values())).threat.eps
    radius, steps = (
        [
            Curve(name, colours[name], [(float(x), Cell.of(score)) for x, score in getattr(study, by)])
            for name, study in sound.items()
        ]
        for by in ("by_radius", "by_steps")
    )
    largest = max((x for curve in radius for x, _ in curve.points), default=eps)
    title, y_label = "Accuracy under attack against", "accuracy (%)"
    by_radius = (f"radius{end}", f"{title} the radius of the attack", "ε", y_label, radius)
    by_steps = (f"steps{end}", f"{title} its steps", "steps of the attack", y_label, steps)
    return [
        Chart(*by_radius, lambda x: f"ε = {eps_text(x)}", (0.0, largest), guide=eps),
        Chart(*by_steps, lambda x: f"{x:g} steps", (STEPS[0], STEPS[-1]), x_ticks=STEPS),
    ]


def training_charts(runs: Sequence[ReportedModel], colours: Mapping[str, int]) -> list[Chart]:
    """Validation accuracy, robust and clean, and the squared Jacobian norm by epoch."""
    accuracy, jacobian = list[Curve](), list[Curve]()
    for run in runs:
        index, events = colours[run.name], {"best": run.best, "collapse": run.collapse}
        marks = {kind: float(epoch["epoch"] + 1) for kind, epoch in events.items() if epoch is not None}
        accuracy.append(Curve(run.name, index, _points(run, "val_clean"), "clean", faint=True))
        accuracy.append(Curve(run.name, index, _points(run, "val_robust"), "robust", marks=marks))
        jacobian.append(Curve(run.name, index, _points(run, "jacobian", 1, "{:.4g}"), marks=marks))
    last = max((len(run.epochs) for run in runs), default=1)
    common: dict[str, Any] = {"x_text": lambda x: f"epoch {x:g}", "x_limits": (0, last)}
    validation = ("validation", "Validation accuracy by epoch", "epoch", "validation (%)", accuracy)
    norm = ("jacobian", "Squared Jacobian norm by epoch", "epoch", "‖J‖²", jacobian)
    return [Chart(*validation, **common), Chart(*norm, **common, y_log=True)]


def _points(
    run: ReportedModel, key: str, unit: float = 100, pattern: str = "{:.1f}%"
) -> list[tuple[float, Cell]]:
    """A value of the records by epoch."""
    values = ((float(epoch["epoch"] + 1), unit * epoch[key]) for epoch in run.epochs)
    return [(x, Cell.number(y, pattern) if math.isfinite(y) else Cell("not finite")) for x, y in values]


def save_figures(
    folder: Path, runs: Sequence[ReportedModel], groups: Sequence[Mapping[str, Study]]
) -> list[Path]:
    """Write every plot that there are numbers for; the files written."""
    colours = {run.name: index for index, run in enumerate(runs)}
    made: dict[str, list[Chart]] = {}
    for number, group in enumerate(groups, 1):
        charts = study_charts(group, colours, f"-{number}" if len(groups) > 1 else "")
        made |= {chart.name: [chart] for chart in charts if chart.curves}
    trained = [run for run in runs if run.epochs]
    if trained:
        made["training"] = training_charts(trained, colours)
    return [path for name, charts in made.items() for path in save(paper_figure(charts), folder / name)]


def paper_figure(charts: Sequence[Chart]) -> Figure:
    """Charts side by side, with a legend below them."""
    with style():
        names = list(dict.fromkeys(curve.run for chart in charts for curve in chart.curves))
        short = [_shortened(name) for name in names]
        unique = [f"{text} ({k})" if short.count(text) > 1 else text for k, text in enumerate(short, 1)]
        labels = {name: label(text) for name, text in zip(names, unique, strict=True)}
        figure, panels = subplots(1, len(charts), width=SINGLE if len(charts) == 1 else DOUBLE, squeeze=False)
        for chart, axes in zip(charts, panels[0], strict=True):
            chart.draw(axes, labels)
        found = panels[0][0].get_legend_handles_labels()
        for columns in range(len(names), 0, -1):  # as many as fit
            legend = figure.legend(*found, loc="outside lower center", ncols=columns, columnspacing=1.5)
            box = legend.get_window_extent()
            if box.width <= figure.bbox.width or columns == 1:
                break
            legend.remove()
        figure.set_figheight(figure.get_figheight() + box.height / figure.dpi)
    return figure


def _shortened(text: str) -> str:
    """Text without its middle where it is too long for a legend: names differ at their ends."""
    text = one_line(text)
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2].rstrip()}…{text[1 - LONGEST // 2 :].lstrip()}"
