"""One self-contained page: nothing is fetched, all text is escaped, only its own script and style may run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from atlas import __version__, terminal
from atlas.evaluation import Flag
from atlas.reports import charts, classes, formatting
from atlas.reports.charts import MOST_BANDS, colour, swatch
from atlas.reports.collect import Run
from atlas.reports.comparison import Comparison, at_a_glance, comparisons, verdict
from atlas.reports.formatting import threat_words
from atlas.reports.gallery import Exhibit, Kept, make_gallery, scale_of_all
from atlas.reports.quick_attack import Study, grouped

SHADES = 10
"""Steps of the shading of accuracies, from 0 to 100%."""
MOST_LEVEL = 3
"""Letters of a class's name that have room above its column; longer ones stand upright."""


@dataclass(frozen=True)
class Group:
    """Studies of the same images under the same threat, and what a page shows of them."""

    title: str
    attack: str
    n: int
    studies: Mapping[str, Study]
    by_radius: charts.Chart
    by_steps: charts.Chart
    banded: bool
    """Whether the charts show intervals."""
    exhibits: Sequence[Exhibit]
    by_class: classes.ByClass
    confusions: Sequence[classes.Confusion]

    @property
    def scale(self) -> float | None:
        """By how much all perturbations are enlarged; None where each is by its own."""
        return scale_of_all(self.exhibits)

    @property
    def gray(self) -> bool:
        """Whether perturbations are drawn in red and blue."""
        return next(iter(self.studies.values())).x.shape[1] != 3

    @property
    def classes(self) -> int:
        """How many there are among the images."""
        return len(set(next(iter(self.studies.values())).y.tolist()))

    @property
    def left_out(self) -> list[str]:
        """Models without curves, each with the reason."""
        return [f"{name}: invalid ({', '.join(s.reasons)})" for name, s in self.studies.items() if s.reasons]


def render(
    runs: Sequence[Run],
    studies: Mapping[str, Study],
    command: str,
    kept: Mapping[str, Sequence[Kept]] | None = None,
) -> str:
    """The page of these models. Those without a study have no curves, no confusion matrix, and in their
    gallery the images that their evaluations have `kept`."""
    found = comparisons(runs)
    colours = {run.name: index for index, run in enumerate(runs)}
    ordered = {run.name: studies[run.name] for run in runs if run.name in studies}
    groups = [_group(part, found, colours) for part in grouped(ordered)]
    return (
        _environment()
        .get_template("page.html")
        .render(
            version=__version__,
            command=command,
            runs=runs,
            comparisons=found,
            glance=at_a_glance(found),
            groups=groups,
            studied=set(studies),
            unstudied=[run for run in runs if run.name not in studies],
            kept={name: images for name, images in (kept or {}).items() if images},
            per_class=_per_class(found, groups),
            training=_training([run for run in runs if run.epochs], colours),
            flags={run.name: _flags(run, studies.get(run.name)) for run in runs},
            key={name: colour(index) for name, index in _keys(runs, found).items()},
            swatches={name: swatch(index) for name, index in _keys(runs, found).items()},
            **_assets(),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("atlas.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "coded": formatting.coded,
        "course": formatting.course_words,
        "duration": terminal.duration,
        "method": formatting.method_words,
        "settings": formatting.settings,
        "threat": threat_words,
        "trained_on": formatting.trained_on,
        "whole": formatting.whole,
        "identity": formatting.identity,
        "upright": lambda names: "named" if any(len(name) > MOST_LEVEL for name in names) else "",
        "verdict": verdict,
        "shade": lambda share: f"h{round(SHADES * share)}",
    }
    return environment


def _assets() -> dict[str, Any]:
    """Style and script, and the policy that lets just these two run, known by their hashes."""
    files = resources.files("atlas.reports") / "templates"
    style, script = (files.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return {"style": Markup(style), "script": Markup(script), "policy": policy}


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _keys(runs: Sequence[Run], found: Sequence[Comparison]) -> dict[str, int]:
    """The colour of each name that a table can have for a run."""
    index = {run.name: k for k, run in enumerate(runs)}
    return index | {entry.name: index[entry.run.name] for c in found for entry in c.entries}


def _group(studies: Mapping[str, Study], found: Sequence[Comparison], colours: Mapping[str, int]) -> Group:
    first, sound = next(iter(studies.values())), charts.valid(studies)
    threat = {"name": type(first.threat).__name__.lower(), "eps": first.threat.eps}
    title = f"{first.data}, {threat_words(threat)}"
    evaluated = [c for c in found if {e.run.name for e in c.entries} >= set(studies)]
    evaluated.sort(key=lambda each: each.setting != title)  # these images and this radius before others
    return Group(
        title=title,
        attack=f"the margin climbed in {first.settings.steps} steps from one random start",
        n=first.n,
        studies=studies,
        by_radius=charts.radius_chart(studies, colours),
        by_steps=charts.steps_chart(studies, colours),
        banded=len(sound) <= MOST_BANDS,
        exhibits=make_gallery(sound) if sound else [],
        by_class=(
            classes.of_comparison(evaluated[0], first.named) if evaluated else classes.of_studies(studies)
        ),
        confusions=[classes.confusion(name, study) for name, study in sound.items()],
    )


def _per_class(found: Sequence[Comparison], groups: Sequence[Group]) -> list[classes.ByClass]:
    """Of the evaluations of models that no group has."""
    shown = {name for group in groups for name in group.by_class.rows}
    return [classes.of_comparison(each) for each in found if any(e.name not in shown for e in each.entries)]


def _training(runs: Sequence[Run], colours: Mapping[str, int]) -> dict[str, Any] | None:
    if not runs:
        return None
    drawn = (charts.training_chart(runs, colours), charts.jacobian_chart(runs, colours))
    return {"runs": runs, "charts": drawn}


def _flags(run: Run, study: Study | None) -> list[tuple[str, Flag]]:
    """(where it went up, flag), each once, the gravest first."""
    found = [(folder, flag) for folder, report in run.evaluations.items() for flag in report.flags]
    found += [("report", flag) for flag in (study.flags if study else ())]
    told: dict[tuple[str, bool], tuple[str, Flag]] = {}
    for where, flag in found:
        told.setdefault((flag.message, flag.fatal), (where, flag))
    return sorted(told.values(), key=lambda item: (not item[1].fatal, not item[1].grave))
