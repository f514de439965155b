"""The charts of a page, from runs and their studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from atlas.evaluation import Score
from atlas.report.charts import Axis, Mark, Point, Series, even, line_chart, percent, powers
from atlas.report.collect import Epoch, Run
from atlas.report.study import STEPS, Study
from atlas.report.words import radius

Studies = Mapping[str, Study]
"""By the name of the run, those of one data set and threat."""
Colours = Mapping[str, int]


def _scored(name: str, index: int, points: Sequence[tuple[float, str, Score]]) -> Series:
    drawn = [Point(x, s.rate, *s.interval, hint=f"{where}: {s}, n = {s.n}") for x, where, s in points]
    return Series(name, index, drawn)


def valid(studies: Studies) -> dict[str, Study]:
    """Without those whose numbers mean nothing."""
    return {name: study for name, study in studies.items() if not study.reasons}


def radius_chart(studies: Studies, colours: Colours) -> Markup:
    """Robust accuracy against eps, a curve a model, with the radius of the runs marked."""
    series = [
        _scored(name, colours[name], [(eps, f"ε = {radius(eps)}", score) for eps, score in study.by_radius])
        for name, study in valid(studies).items()
    ]
    threat = next(iter(studies.values())).threat
    largest = max((point.x for each in series for point in each.points), default=threat.eps)
    title = "Accuracy under attack against the radius of the attack"
    return line_chart(title, even("ε", 0.0, largest), percent("accuracy (%)"), series, guide=threat.eps)


def steps_chart(studies: Studies, colours: Colours) -> Markup:
    """Robust accuracy at the full radius against the steps of the attack."""
    series = [
        _scored(name, colours[name], [(float(k), f"{k} steps", score) for k, score in study.by_steps])
        for name, study in valid(studies).items()
    ]
    axis = Axis("steps of the attack", [(k, str(k)) for k in STEPS], STEPS[0], STEPS[-1], log=True)
    least = min((point.low or 0.0 for each in series for point in each.points), default=0.0)
    return line_chart("Accuracy under attack against its steps", axis, percent("accuracy (%)", least), series)


def training_chart(runs: Sequence[Run], colours: Colours) -> Markup:
    """Validation accuracy by epoch: robust, and clean beside it, with the best epoch and collapses marked."""
    series = []
    for run in runs:
        clean = [Point(e.number, e.clean) for e in run.epochs]
        robust = [_validated(e) for e in run.epochs]
        marks = [Mark(_validated(epoch), kind) for kind, epoch in _events(run)]
        series.append(Series(run.name, colours[run.name], clean, faint=True))
        series.append(Series(run.name, colours[run.name], robust, marks=marks))
    return line_chart("Validation accuracy by epoch", _epochs(runs), percent("validation (%)"), series)


def jacobian_chart(runs: Sequence[Run], colours: Colours) -> Markup:
    """The squared Jacobian norm by epoch, which jumps where a model collapses."""
    series = []
    for run in runs:
        points = [_measured(epoch) for epoch in run.epochs]
        marks = [Mark(_measured(epoch), kind) for kind, epoch in _events(run)]
        series.append(Series(run.name, colours[run.name], points, marks=marks))
    values = [point.y for each in series for point in each.points if point.y > 0]
    title = "Squared Jacobian norm by epoch"
    return line_chart(title, _epochs(runs), powers("‖J‖²", values), series)


def _validated(epoch: Epoch) -> Point:
    return Point(epoch.number, epoch.robust, hint=f"epoch {epoch.number}: {epoch.robust:.1%} robust")


def _measured(epoch: Epoch) -> Point:
    return Point(epoch.number, epoch.jacobian, hint=f"epoch {epoch.number}: {epoch.jacobian:.3g}")


def _events(run: Run) -> list[tuple[str, Epoch]]:
    found = {"best": run.best, "collapse": run.collapse}
    return [(kind, epoch) for kind, epoch in found.items() if epoch is not None]


def _epochs(runs: Sequence[Run]) -> Axis:
    last = max((epoch.number for run in runs for epoch in run.epochs), default=1)
    axis = even("epoch", 0, last)
    return Axis(axis.label, [tick for tick in axis.ticks if tick[0] == int(tick[0])], 0, last)
