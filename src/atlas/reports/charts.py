"""Line charts as inline SVG: colours come from the page's style, so that they follow its theme."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from markupsafe import Markup

from atlas.evaluation import Score
from atlas.reports.collect import Epoch, Run
from atlas.reports.quick_attack import STEPS, Study
from atlas.threat import eps_text

WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 16, 42
MOST_DOTS = 40
"""Of longer lines only every so many points are drawn."""
MOST_BANDS = 4
"""The intervals of more series hide one another, and are left to the hints."""
COLOURS = 7
"""Series of the page's style; more of them repeat its colours with dashed lines."""
SHAPES = {
    "o": "M-1 0A1 1 0 1 0 1 0A1 1 0 1 0-1 0Z",
    "s": "M-.9-.9H.9V.9H-.9Z",
    "D": "M0-1.25L1.25 0 0 1.25-1.25 0Z",
    "^": "M0-1.2L1.2.9H-1.2Z",
    "v": "M0 1.2L1.2-.9H-1.2Z",
    "P": "M-.4-1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2V-.4H-.4Z",
    "X": "M.57-1.13L1.13-.57.57 0 1.13.57.57 1.13 0 .57-.57 1.13-1.13.57-.57 0-1.13-.57-.57-1.13 0-.57Z",
}
"""Of the points, beside the colours, as matplotlib calls them: paths around 0 of radius 1."""


GuideLine = tuple[float, str]
"""A place along x, and what is written above it."""


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    at: str = ""
    """x in words."""
    value: str = ""
    """y in words."""

    @property
    def bounds(self) -> str:
        """The interval, in percent."""
        if self.low is None or self.high is None:
            return ""
        return f"[{100 * self.low:.1f}, {100 * self.high:.1f}]"

    @property
    def hint(self) -> str:
        """What a reader sees who points at it."""
        return f"{self.at}: {self.value} {self.bounds}".rstrip()


@dataclass(frozen=True)
class Mark:
    """Something that happened at a point."""

    point: Point
    kind: str
    """"best" or "collapse"."""


@dataclass(frozen=True)
class Series:
    name: str
    index: int
    """Which colour."""
    points: Sequence[Point]
    faint: bool = False
    """A companion of another line, without points of its own."""
    marks: Sequence[Mark] = ()
    what: str = ""
    """Which of its lines this is, where it has several."""

    @property
    def label(self) -> str:
        return ", ".join(filter(None, [self.name, self.what]))


def line_chart(
    title: str, x: Axis, y: Axis, series: Sequence[Series], guide: GuideLine | None = None
) -> Markup:
    """Lines with their points and intervals; `guide` is a vertical line to look for, and its name."""
    box = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "class": "chart"}
    root = ET.Element("svg", box)
    ET.SubElement(root, "title").text = title
    _axes(root, x, y)
    if guide is not None:
        at = _x(x, guide[0])
        ET.SubElement(root, "line", {"x1": f"{at:.1f}", "x2": f"{at:.1f}", **_span("y"), "class": "guide"})
        _text(root, min(at, WIDTH - RIGHT - 24), TOP - 4, guide[1], "middle", "guide-word")
    for each in series if len(series) <= MOST_BANDS else ():
        _band(root, x, y, each)
    for each in series:
        _line(root, x, y, each)
    return Markup(ET.tostring(root, encoding="unicode"))


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM)


def _span(side: str) -> dict[str, str]:
    ends = {"x": (LEFT, WIDTH - RIGHT), "y": (TOP, HEIGHT - BOTTOM)}[side]
    return {f"{side}1": str(ends[0]), f"{side}2": str(ends[1])}


def _axes(root: ET.Element, x: Axis, y: Axis) -> None:
    for value, text in y.ticks:
        at = _y(y, value)
        ET.SubElement(root, "line", {"y1": f"{at:.1f}", "y2": f"{at:.1f}", **_span("x"), "class": "grid"})
        _text(root, LEFT - 7, at + 4, text, "end")
    for value, text in x.ticks:
        at = _x(x, value)
        foot = HEIGHT - BOTTOM
        tick = {"x1": f"{at:.1f}", "x2": f"{at:.1f}", "y1": f"{foot}", "y2": f"{foot + 4}", "class": "tick"}
        ET.SubElement(root, "line", tick)
        _text(root, at, foot + 17, text, "middle")
    foot = HEIGHT - BOTTOM
    ET.SubElement(root, "line", {"y1": f"{foot}", "y2": f"{foot}", **_span("x"), "class": "axis"})
    _text(root, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x.label, "middle", "label")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    _text(root, 11, middle, y.label, "middle", "label", f"rotate(-90 11 {middle:.1f})")


def _text(
    root: ET.Element, x: float, y: float, text: str, anchor: str, kind: str = "", turn: str = ""
) -> None:
    where = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    where |= ({"class": kind} if kind else {}) | ({"transform": turn} if turn else {})
    ET.SubElement(root, "text", where).text = text


def _finite(points: Sequence[Point], x: Axis, y: Axis) -> list[Point]:
    """Without what cannot be drawn."""
    kept = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y)]
    return [p for p in kept if not (y.log and p.y <= 0) and not (x.log and p.x <= 0)]


def _band(root: ET.Element, x: Axis, y: Axis, series: Series) -> None:
    points = [p for p in _finite(series.points, x, y) if p.low is not None and p.high is not None]
    if len(points) < 2:
        return
    upper = [f"{_x(x, p.x):.1f},{_y(y, p.high or 0.0):.1f}" for p in points]
    lower = [f"{_x(x, p.x):.1f},{_y(y, p.low or 0.0):.1f}" for p in reversed(points)]
    ET.SubElement(
        root, "polygon", {"points": " ".join(upper + lower), "class": f"band {colour(series.index)}"}
    )


def _line(root: ET.Element, x: Axis, y: Axis, series: Series) -> None:
    points = _finite(series.points, x, y)
    kind = " ".join(["line", colour(series.index), *["faint"] * series.faint, dashes(series.index)]).strip()
    way = " ".join(f"{_x(x, p.x):.1f},{_y(y, p.y):.1f}" for p in points)
    ET.SubElement(root, "polyline", {"points": way, "class": kind})
    for point in points[:: math.ceil(len(points) / MOST_DOTS)] if points and not series.faint else ():
        _dot(root, x, y, point, series)
    for mark in series.marks:
        if _finite([mark.point], x, y):
            _mark(root, x, y, mark, series)


def _dot(root: ET.Element, x: Axis, y: Axis, point: Point, series: Series) -> None:
    kind = f"dot {colour(series.index)} {dashes(series.index)}".strip()
    where = {"transform": f"translate({_x(x, point.x):.1f} {_y(y, point.y):.1f}) scale(3.4)", "class": kind}
    drawn = ET.SubElement(root, "path", {"d": shape(series.index), **where})
    ET.SubElement(drawn, "title").text = f"{series.label}: {point.hint}"


def _mark(root: ET.Element, x: Axis, y: Axis, mark: Mark, series: Series) -> None:
    name = f"{series.label}, {mark.kind}"
    a, b, r = _x(x, mark.point.x), _y(y, mark.point.y), 6.0
    if mark.kind == "best":
        ring = {"cx": f"{a:.1f}", "cy": f"{b:.1f}", "r": f"{r:g}", "class": f"best {colour(series.index)}"}
        ET.SubElement(ET.SubElement(root, "circle", ring), "title").text = f"{name}: {mark.point.hint}"
        return
    cross = (
        f"M{a - r:.1f} {b - r:.1f}L{a + r:.1f} {b + r:.1f}M{a - r:.1f} {b + r:.1f}L{a + r:.1f} {b - r:.1f}"
    )
    drawn = ET.SubElement(root, "path", {"d": cross, "class": f"collapse {colour(series.index)}"})
    ET.SubElement(drawn, "title").text = f"{name}: {mark.point.hint}"
    _text(
        root, min(a + 9, WIDTH - 52), b - 8 if b > TOP + 20 else b + 16, "collapse", "start", "collapse-word"
    )


def colour(index: int) -> str:
    """The class of a series' colour."""
    return f"s{index % COLOURS}"


def dashes(index: int) -> str:
    """The class of its line, where the colours have been used up."""
    return "dashed" if index >= COLOURS else ""


def shape(index: int) -> str:
    """The path of its points."""
    return list(SHAPES.values())[index % len(SHAPES)]


def swatch(index: int) -> Markup:
    """One of its points, to stand before its name."""
    kind = f"swatch {colour(index)} {dashes(index)}".strip()
    root = ET.Element("svg", {"viewBox": "-1.3 -1.3 2.6 2.6", "class": kind, "aria-hidden": "true"})
    ET.SubElement(root, "path", {"d": shape(index)})
    return Markup(ET.tostring(root, encoding="unicode"))


@dataclass(frozen=True)
class Axis:
    """What is drawn along one side."""

    label: str
    ticks: Sequence[tuple[float, str]]
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        change = math.log if self.log else float
        low, high = change(self.low), change(self.high)
        return (change(value) - low) / (high - low) if high > low else 0.5


def percent(label: str, least: float = 0.0) -> Axis:
    """0 to 100, or from the ten below the least value where that leaves more than half of it empty."""
    tens = math.floor(10 * least) if least > 0.5 else 0
    ticks = [k for k in range(tens, 11) if tens >= 7 or k % 2 == 0 or k == tens]
    return Axis(label, [(k / 10, f"{10 * k}") for k in ticks], tens / 10, 1.0)


def even(label: str, low: float, high: float) -> Axis:
    """Round numbers, about seven, over a range."""
    rough = max(high - low, 1e-9) / 7
    base = 10.0 ** math.floor(math.log10(rough))
    step = next(base * k for k in (1, 2, 5, 10) if base * k >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(label, [(k * step, f"{k * step:.4g}") for k in range(first, last + 1)], low, high)


def powers(label: str, values: Sequence[float]) -> Axis:
    """Powers of ten around positive values."""
    low = math.floor(math.log10(min(values, default=1.0)))
    high = max(low + 1, math.ceil(math.log10(max(values, default=10.0))))
    every = max(1, math.ceil((high - low) / 6))
    ticks = [(10.0**k, f"{10.0**k:g}") for k in range(low, high + 1, every)]
    return Axis(label, ticks, 10.0**low, 10.0**high, log=True)


Studies = Mapping[str, Study]
"""By the name of the run, those of one data set and threat."""
Colours = Mapping[str, int]


@dataclass(frozen=True)
class Chart:
    """A drawing, and the numbers in it."""

    title: str
    drawing: Markup
    along: str
    """What the numbers go along."""
    series: Sequence[Series]

    @property
    def rows(self) -> list[tuple[str, list[Point | None]]]:
        """(x in words, the point of each series)."""
        points = [{point.x: point for point in each.points} for each in self.series]
        names = {x: point.at for each in points for x, point in each.items()}
        return [(names[x], [each.get(x) for each in points]) for x in sorted(names)]

    @property
    def short(self) -> bool:
        """Whether its numbers are few enough for paper."""
        return len(self.rows) <= MOST_DOTS


def _chart(title: str, x: Axis, y: Axis, series: Sequence[Series], guide: GuideLine | None = None) -> Chart:
    return Chart(title, line_chart(title, x, y, series, guide), x.label, series)


def _scored(name: str, index: int, points: Sequence[tuple[float, str, Score]]) -> Series:
    return Series(name, index, [Point(x, s.rate, *s.interval, at, f"{s.rate:.1%}") for x, at, s in points])


def valid(studies: Studies) -> dict[str, Study]:
    """Without those whose numbers mean nothing."""
    return {name: study for name, study in studies.items() if not study.reasons}


def radius_chart(studies: Studies, colours: Colours) -> Chart:
    """Robust accuracy against eps, a curve a model, with the radius of the runs marked."""
    series = [
        _scored(name, colours[name], [(eps, f"ε = {eps_text(eps)}", score) for eps, score in study.by_radius])
        for name, study in valid(studies).items()
    ]
    threat = next(iter(studies.values())).threat
    largest = max((point.x for each in series for point in each.points), default=threat.eps)
    title = "Accuracy under attack against the radius of the attack"
    guide = (threat.eps, f"ε = {eps_text(threat.eps)}")
    return _chart(title, even("ε", 0.0, largest), percent("accuracy (%)"), series, guide)


def steps_chart(studies: Studies, colours: Colours) -> Chart:
    """Robust accuracy at the full radius against the steps of the attack."""
    series = [
        _scored(name, colours[name], [(float(k), f"{k} steps", score) for k, score in study.by_steps])
        for name, study in valid(studies).items()
    ]
    axis = Axis("steps of the attack", [(k, str(k)) for k in STEPS], STEPS[0], STEPS[-1], log=True)
    least = min((point.low or 0.0 for each in series for point in each.points), default=0.0)
    return _chart("Accuracy under attack against its steps", axis, percent("accuracy (%)", least), series)


def training_chart(runs: Sequence[Run], colours: Colours) -> Chart:
    """Validation accuracy by epoch: robust, and clean beside it, with the best epoch and collapses marked."""
    series = []
    for run in runs:
        clean = [_point(e, e.clean, "{:.1%}") for e in run.epochs]
        robust = [_point(e, e.robust, "{:.1%}") for e in run.epochs]
        marks = [Mark(_point(e, e.robust, "{:.1%}"), kind) for kind, e in _events(run)]
        series.append(Series(run.name, colours[run.name], clean, faint=True, what="clean"))
        series.append(Series(run.name, colours[run.name], robust, marks=marks, what="robust"))
    return _chart("Validation accuracy by epoch", _epochs(runs), percent("validation (%)"), series)


def jacobian_chart(runs: Sequence[Run], colours: Colours) -> Chart:
    """The squared Jacobian norm by epoch, which jumps where a model collapses."""
    series = []
    for run in runs:
        points = [_point(e, e.jacobian, "{:.4g}") for e in run.epochs]
        marks = [Mark(_point(e, e.jacobian, "{:.4g}"), kind) for kind, e in _events(run)]
        series.append(Series(run.name, colours[run.name], points, marks=marks))
    values = [point.y for each in series for point in each.points if point.y > 0]
    title = "Squared Jacobian norm by epoch"
    return _chart(title, _epochs(runs), powers("‖J‖²", values), series)


def _point(epoch: Epoch, value: float, form: str) -> Point:
    said = form.format(value) if math.isfinite(value) else "not finite"
    return Point(epoch.number, value, at=f"epoch {epoch.number}", value=said)


def _events(run: Run) -> list[tuple[str, Epoch]]:
    found = {"best": run.best, "collapse": run.collapse}
    return [(kind, epoch) for kind, epoch in found.items() if epoch is not None]


def _epochs(runs: Sequence[Run]) -> Axis:
    last = max((epoch.number for run in runs for epoch in run.epochs), default=1)
    axis = even("epoch", 0, last)
    return Axis(axis.label, [tick for tick in axis.ticks if tick[0] == int(tick[0])], 0, last)
