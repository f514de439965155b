"""One self-contained page: nothing is fetched, all text is escaped, only its own script and style may run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from atlas import __version__, terminal
from atlas.evaluation import Flag
from atlas.reports import classes, formatting, plots
from atlas.reports.collect import ReportedModel
from atlas.reports.comparison import Comparison, at_a_glance, comparisons, verdict
from atlas.reports.gallery import Kept, make_gallery
from atlas.reports.quick_attack import Study, grouped, valid

LONG_NAME = 3
"""Names of classes with more letters stand upright above their columns."""


def render(
    runs: Sequence[ReportedModel],
    studies: Mapping[str, Study],
    command: str,
    kept: Mapping[str, Sequence[Kept]] | None = None,
) -> str:
    """The page of these models.

    Models without a study have no curves and no confusion matrix, and in their gallery the images that their
    evaluations have `kept`.
    """
    found = comparisons(runs)
    index = {run.name: k for k, run in enumerate(runs)}
    ordered = {run.name: studies[run.name] for run in runs if run.name in studies}
    groups = [_group(part, found, index, f"-{k}") for k, part in enumerate(grouped(ordered), 1)]
    trained = [run for run in runs if run.epochs]
    training = plots.training_charts(trained, index) if trained else []
    shown = {row[0].text for group in groups for row in group["by_class"].rows}
    names = index | {entry.name: index[entry.run.name] for c in found for entry in c.entries}
    charts = [*training, *(chart for group in groups for chart in group["charts"])]
    labels = names | {curve.label: curve.index for chart in charts for curve in chart.curves}
    template = _environment().get_template("page.html")
    return template.render(
        version=__version__,
        command=command,
        runs=runs,
        comparisons=found,
        glance=at_a_glance(found),
        groups=groups,
        studied=set(studies),
        unstudied=[run for run in runs if run.name not in studies],
        kept={name: images for name, images in (kept or {}).items() if images},
        # of evaluations of models that no group has
        per_class=[classes.of_comparison(c) for c in found if any(e.name not in shown for e in c.entries)],
        trained=trained,
        training=training,
        flags={run.name: _flags(run, studies.get(run.name)) for run in runs},
        key={name: plots.colour_class(k) for name, k in names.items()},
        swatches={name: plots.swatch(k) for name, k in labels.items()},
        most_dots=plots.MOST_DOTS,
        **_assets(),
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
        "duration": terminal.duration,
        "identity": formatting.identity,
        "method": formatting.method_text,
        "settings": formatting.settings,
        "settings_json": formatting.settings_json,
        "shade": lambda share: f"h{round(10 * share)}",
        "threat": formatting.threat_text,
        "trained_on": formatting.trained_on,
        "training": formatting.training_text,
        "upright": lambda names: "named" if any(len(name) > LONG_NAME for name in names) else "",
        "verdict": verdict,
    }
    return environment


def _assets() -> dict[str, Any]:
    """Style and script, and the policy that allows only these two, by their hashes."""
    files = resources.files("atlas.reports") / "templates"
    style, script = (files.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return {"style": Markup(style), "script": Markup(script), "policy": policy}


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _group(
    studies: Mapping[str, Study], found: Sequence[Comparison], index: Mapping[str, int], end: str
) -> dict[str, Any]:
    """What the page shows of studies of the same images under the same threat."""
    first, sound = next(iter(studies.values())), valid(studies)
    threat = {"name": type(first.threat).__name__.lower(), "eps": first.threat.eps}
    title = f"{first.data}, {formatting.threat_text(threat)}"
    evaluated = [c for c in found if {e.run.name for e in c.entries} >= set(studies)]
    evaluated.sort(key=lambda each: each.setting != title)  # these images and this radius before others
    exhibits = make_gallery(sound) if sound else []
    scales = {view.scale for exhibit in exhibits for view in exhibit.views if view.change}
    return {
        "title": title,
        "first": first,
        "names": list(studies),
        "left_out": [f"{k}: invalid ({', '.join(s.reasons)})" for k, s in studies.items() if s.reasons],
        "charts": plots.study_charts(studies, index, end),
        "banded": len(sound) <= plots.MOST_BANDS,
        "exhibits": exhibits,
        "scale": scales.pop() if len(scales) == 1 else None,
        "gray": first.x.shape[1] != 3,
        "classes": len(set(first.y.tolist())),
        "by_class": classes.of_comparison(evaluated[0], first.named)
        if evaluated
        else classes.of_studies(studies),
        "confusions": [classes.confusion(name, study) for name, study in sound.items()],
    }


def _flags(run: ReportedModel, study: Study | None) -> list[tuple[str, Flag]]:
    """The warnings and where each was raised, without repetitions, the gravest first."""
    found = [(folder, flag) for folder, report in run.evaluations.items() for flag in report.flags]
    found += [("report", flag) for flag in (study.flags if study else ())]
    unique: dict[tuple[str, bool], tuple[str, Flag]] = {}
    for where, flag in found:
        unique.setdefault((flag.message, flag.fatal), (where, flag))
    return sorted(unique.values(), key=lambda item: (not item[1].fatal, not item[1].grave))
