"""The tables that every artefact has: the paper's numbers, ours, intervals and differences side by side."""

from __future__ import annotations

from collections.abc import Iterator

from atlas.evaluation.flags import MEANINGS
from atlas.report.comparison import WORST
from atlas.report.tables import Cell, Table
from atlas.reproduce.artefact import Row
from atlas.reproduce.columns import SUITES
from atlas.reproduce.findings import Findings
from atlas.reproduce.paper import TIME
from atlas.reproduce.values import Value
from atlas.reproduce.verdicts import Subject

TableRow = list[Cell | str]
LIST_HEADS = (
    *("row", "data", "network", "column", "paper", "ours", "difference"),
    *("n", "by seed", "status"),
)


def title(findings: Findings) -> str:
    order = findings.order
    version = {"written": ", as written", "tuned": ", tuned"}[order.version] if order.of_mnist else ""
    return f"{order.artefact.of}, scale {order.scale}{version}"


def side_by_side(findings: Findings) -> Table:
    """Three lines a row: the paper's accuracy in %, ours with its 95% interval, the difference in points."""
    columns = findings.order.artefact.columns
    lines: list[TableRow] = []
    for row in findings.rows:
        values = [_value(findings, row, column) for column in columns]
        network = findings.order.run(row, 0).config.model
        lines.append([findings.name(row), network, "paper", *(v.paper_cell() if v else "-" for v in values)])
        lines.append(["", "", "ours", *(v.cell() if v else "-" for v in values)])
        lines.append(["", "", "difference", *(v.difference_cell() if v else "-" for v in values)])
    heads = ["", "network", "", *(_head(findings, column) for column in columns)]
    return Table.of(title(findings), heads, lines, notes=tuple(notes(findings)))


def listed(findings: Findings) -> Table:
    """The same, a line a number, for programs."""
    lines = [_listed(findings, row, column) for row in findings.rows for column in findings.order.shown(row)]
    return Table.of(title(findings), LIST_HEADS, lines)


def _listed(findings: Findings, row: Row, column: str) -> TableRow:
    value = findings.value(row, column)
    ours = Cell("") if value.ours is None else Cell("", value.ours, value.interval)
    n = "" if value.n is None else str(value.n)
    by_seed = " ".join(f"{100 * each.score.rate:.2f}" for each in value.seeds if not each.score.reasons)
    status = ", ".join([value.status, *value.marks, *value.reasons])
    what = [row.key, row.task, findings.order.run(row, 0).config.model, column]
    return [*what, _number(value.paper), ours, _number(value.difference), n, by_seed, status]


def trained_with(findings: Findings) -> Iterator[str]:
    """What the trainings of an artefact had: network, images, precision."""
    order = findings.order
    for task in dict.fromkeys(row.task for row in findings.rows):
        runs = [order.run(row, 0).config for row in findings.rows if row.task == task]
        sizes = sorted({run.training.validation.size for run in runs})
        held_out = " or ".join(f"{size:,}" for size in sizes)
        yield f"{task}: {order.setting(task).words}. Of the training images {held_out} are for validation."
    if order.precision != "float32":
        timed = ", the time a batch too" if TIME in order.artefact.columns else ""
        yield f"Trained in {order.precision}, with channels last where that is fast{timed}."
    if untuned := [row.label for row in order.scaled_rows if row not in findings.rows]:
        yield f"Without tuned settings, and so not here: {', '.join(untuned)}."


def notes(findings: Findings) -> Iterator[str]:
    """How the table was made, and what it lacks."""
    order = findings.order
    yield from trained_with(findings)
    if order.seeds > 1:
        ours = f"the mean of {order.seeds} seeds, with a 95% interval for other seeds and other images"
    else:
        ours = "of one seed, with Wilson's 95% interval"
    worst = f" The worst case is taken image by image over {_worst_of(findings)}."
    yield (
        f"Accuracy in %; ours is {ours}, each model at its best validation epoch."
        f"{worst if WORST in order.artefact.columns else ''}"
    )
    if TIME in order.artefact.columns:
        yield from _timed(findings)
    if order.attack_dtype != "float32":
        yield f"Attacks that need no precision search in {order.attack_dtype}; verdicts are those of float32."
    for row in findings.rows:
        for subject in findings.subjects[row.key]:
            yield from _troubles(f"{findings.name(row)}, seed {subject.course.run.seed}", subject)
    subjects = [subject for row in findings.rows for subject in findings.subjects[row.key]]
    for name in dict.fromkeys(flag.name for subject in subjects for flag in subject.flags):
        yield f"{name}: {MEANINGS[name]}."
    yield from missing(findings)


def _timed(findings: Findings) -> Iterator[str]:
    yield f"{TIME}: seconds a training step, the paper's on its GPU, ours on one that the JSON names."
    known = [findings.value(row, TIME).timing for row in findings.rows if TIME in findings.order.shown(row)]
    places = {(entry.get("cpu"), entry.get("threads"), entry.get("device")) for entry in known if entry}
    if len(places) > 1:
        yield f"{TIME}: not all were measured on one machine with as many threads: they cannot be compared."


def missing(findings: Findings) -> Iterator[str]:
    """What an artefact lacks, and the command that makes it."""
    if findings.missing:
        how = f"To go on, with the same --workspace and --runs: {findings.go_on.command}"
        yield f"Missing: {'; '.join(findings.missing)}. {how}"


def _worst_of(findings: Findings) -> str:
    """The attacks of which the worst case is taken."""
    subjects = [each for many in findings.subjects.values() for each in many if each.worst_of]
    taken = {label for each in subjects for label in each.worst_of}
    made = {label for each in subjects for label in each.exams}
    left = [c for c in SUITES if c in made - taken]
    return (
        f"all attacks but {' and '.join(left)}, which had fewer images" if taken and left else "all attacks"
    )


def _troubles(who: str, subject: Subject) -> Iterator[str]:
    course = subject.course
    if course.state == "failed":
        yield f"{who}: training broke off with numbers that are not finite."
    if course.collapses and course.best_epoch is not None:
        epochs = ", ".join(str(epoch + 1) for epoch in course.collapses)
        yield f"{who}: collapsed in epoch {epochs}; the numbers are of epoch {course.best_epoch + 1}."
    if subject.at_chance:
        yield f"{who}: no better than guessing on clean images, so its numbers say nothing of the method."
    for name in dict.fromkeys(flag.name for flag in subject.flags):
        evidence = "; ".join(flag.evidence for flag in subject.flags if flag.name == name)
        yield f"{who}: {name}: {evidence}."


def _value(findings: Findings, row: Row, column: str) -> Value | None:
    return findings.value(row, column) if column in findings.order.shown(row) else None


def _number(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(f"{value:g}", value)


def _head(findings: Findings, column: str) -> str:
    """The column with its numbers of images."""
    values = [_value(findings, row, column) for row in findings.rows]
    counts = sorted({value.n for value in values if value is not None and value.n})
    return f"{column} (n = {' or '.join(f'{n:,}' for n in counts)})" if counts else column
