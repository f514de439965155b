"""The charts of a page, from runs and their studies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from atlas.evaluation import Score
from atlas.report.axes import Axis, even, percent, powers
from atlas.report.charts import MOST_DOTS, Guide, Mark, Point, Series, line_chart
from atlas.report.collect import Epoch, Run
from atlas.report.study import STEPS, Study
from atlas.threat import eps_text

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


def _chart(title: str, x: Axis, y: Axis, series: Sequence[Series], guide: Guide | None = None) -> Chart:
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
