"""Line charts as inline SVG: colours come from the page's style, so that they follow its theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from markupsafe import Markup

from atlas.report.axes import Axis

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


Guide = tuple[float, str]
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


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Series], guide: Guide | None = None) -> Markup:
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
