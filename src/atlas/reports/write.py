"""Write a report: one self-contained page, or the comparison as tables.

Nothing is fetched by the page, all text is escaped, and only its own script and style may run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from atlas import __version__, terminal
from atlas.config import table_of
from atlas.errors import UsageError
from atlas.evaluation import Flag, Report
from atlas.files import write_atomic
from atlas.methods import Method
from atlas.reports import plots
from atlas.reports.collect import ReportedModel
from atlas.reports.comparison import Comparison, at_a_glance, comparisons, long_table, threat_text, verdict
from atlas.reports.gallery import Exhibit, kept_images, make_gallery
from atlas.reports.quick_attack import Study, by_class_of, confusion, grouped, valid
from atlas.threat import Threat
from atlas.training import Training
from atlas.training.settings import REGISTRIES

SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".tex": "latex", ".csv": "csv", ".json": "json"}
"""The format of a file by its suffix."""
FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))
LONG_NAME = 3
"""Names of classes with more letters stand upright above their columns."""


def save_report(report: Report, path: Path, name: str) -> None:
    """Write the report of one evaluation, in the format of the suffix."""
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise UsageError(f"path must end in one of {', '.join(SUFFIXES)}, got {path}")
    folder = report.folder or Path("evaluation")
    model = ReportedModel(name, folder, {folder.name: report}, weights=str(report.about["model"]))
    if kind == "html":
        text = page([model], {}, "", {name: kept_images(report)})
    elif kind == "json":
        text = json.dumps(report.summary(), indent=2) + "\n"
    else:
        text = tables([model], kind)
    write_atomic(path, text.encode())


def tables(runs: Sequence[ReportedModel], kind: str) -> str:
    """The comparisons as Markdown or LaTeX. CSV is one long table, a row per model and attack; JSON is a list
    of the summaries of all evaluations."""
    if not any(run.evaluations for run in runs):
        raise UsageError("none of these runs has been evaluated; run `atlas evaluate RUN` first")
    if kind == "csv":
        return long_table(runs).csv()
    if kind == "json":
        summaries = [
            {"model": run.name, "evaluation": folder, **report.summary()}
            for run in runs
            for folder, report in run.evaluations.items()
        ]
        return json.dumps(summaries, indent=2) + "\n"
    found = [t for c in comparisons(runs) for t in (c.table(), c.differences()) if t is not None]
    return "\n".join(table.markdown() if kind == "md" else table.latex() for table in found)


def page(
    runs: Sequence[ReportedModel],
    studies: Mapping[str, Study],
    command: str,
    kept: Mapping[str, Sequence[Exhibit]] | None = None,
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
    files = resources.files("atlas.reports") / "templates"
    style, script = (files.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
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
        per_class=[c.by_class() for c in found if any(e.name not in shown for e in c.entries)],
        trained=trained,
        training=training,
        flags={run.name: _flags(run, studies.get(run.name)) for run in runs},
        key={name: plots.colour_class(k) for name, k in names.items()},
        swatches={name: plots.swatch(k) for name, k in labels.items()},
        most_dots=plots.MOST_DOTS,
        style=Markup(style),
        script=Markup(script),
        policy=policy,
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
        "coded": coded,
        "duration": terminal.duration,
        # of a digest the first 16 digits
        "identity": lambda model: model[:16] if re.fullmatch("[0-9a-f]{64}", model) else model,
        "method": method_text,
        "settings": settings_text,
        "settings_json": lambda table: json.dumps(table, indent=2, sort_keys=True, ensure_ascii=False),
        "shade": lambda share: f"h{round(10 * share)}",
        "threat": threat_text,
        "trained_on": _trained_on,
        "training": _training_text,
        "upright": lambda names: "named" if any(len(name) > LONG_NAME for name in names) else "",
        "verdict": verdict,
    }
    return environment


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _group(
    studies: Mapping[str, Study], found: Sequence[Comparison], index: Mapping[str, int], end: str
) -> dict[str, Any]:
    """What the page shows of studies of the same images under the same threat."""
    first, sound = next(iter(studies.values())), valid(studies)
    title = f"{first.images.name}, {threat_text(table_of(first.threat, REGISTRIES))}"
    evaluated = [c for c in found if {e.run.name for e in c.entries} >= set(studies)]
    evaluated.sort(key=lambda each: each.setting != title)  # these images and this radius before others
    by_class = evaluated[0].by_class(first.named) if evaluated else by_class_of(studies)
    exhibits = make_gallery(sound)
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
        "by_class": by_class,
        "confusions": [confusion(name, study) for name, study in sound.items()],
    }


def _flags(run: ReportedModel, study: Study | None) -> list[tuple[str, Flag]]:
    """The warnings and where each was raised, without repetitions, the gravest first."""
    found = [(folder, flag) for folder, report in run.evaluations.items() for flag in report.flags]
    found += [("report", flag) for flag in (study.flags if study else ())]
    unique: dict[tuple[str, bool], tuple[str, Flag]] = {}
    for where, flag in found:
        unique.setdefault((flag.message, flag.fatal), (where, flag))
    return sorted(unique.values(), key=lambda item: (not item[1].fatal, not item[1].grave))


def settings_text(table: Mapping[str, Any]) -> str:
    """A table in one line, without unset values, but an attack's default step size is mentioned."""
    parts = [str(table["name"])] if table.get("name") else []
    for key, value in table.items():
        if key != "name" and value is not None:
            parts.append(f"{key} {f'({settings_text(value)})' if isinstance(value, Mapping) else value}")
    if table.get("step_size", 0) is None and table.get("relative_step") is None:
        parts.append("step size: the default")
    return terminal.one_line(", ".join(parts))


def method_text(method: Method) -> str:
    """The method's name and its weights."""
    table = table_of(method, REGISTRIES)
    return settings_text({k: v for k, v in table.items() if k in ("name", "alpha", "beta", "gamma")})


def _trained_on(method: Method, threat: Threat) -> str:
    """The attack of the training and its radius."""
    if method.attack is None:
        return "clean images, without an attack"
    attack = settings_text(table_of(method.attack, REGISTRIES))
    return f"{attack}; {threat_text(table_of(threat, REGISTRIES))}"


def _training_text(training: Training) -> str:
    """Epochs, optimizer, schedule and batch size."""
    schedule, optimizer = training.schedule, training.optimizer
    most = "at most " if schedule.kind == "guided" else ""
    epochs = f"{most}{schedule.epochs} epoch{'s' if schedule.epochs != 1 else ''}"
    rate = f"{optimizer.kind} with lr {optimizer.lr:g}, {schedule.kind}"
    return f"{epochs}, {rate}, batches of {training.batch_size}"


def coded(text: str) -> Markup:
    """Escaped, with what stands in backticks as code."""
    parts = re.split("`([^`]+)`", text)
    made = [Markup("<code>{}</code>").format(part) if k % 2 else escape(part) for k, part in enumerate(parts)]
    return Markup("").join(made)
