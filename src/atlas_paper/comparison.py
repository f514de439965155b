"""The tables that every artefact has: the paper's numbers, ours, intervals and differences side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from atlas.evaluation.flags import MEANINGS
from atlas.reports.comparison import WORST
from atlas.reports.tables import Cell, Table
from atlas_paper.artefact import SUITES, Row
from atlas_paper.paper import TIME
from atlas_paper.results import Findings, Subject, Value
from atlas_paper.scales import default_network

TableRow = list[Cell | str]
NOTHING = "-"
NO_RESULT = "Scale smoke only shows that everything runs: its numbers are no result."
"""A cell of which there is nothing to say."""
LIST_HEADS = (
    *("row", "data", "network", "column", "paper", "ours", "difference"),
    *("n", "by seed", "status"),
)


def title(findings: Findings) -> str:
    """What it is of; on MNIST with the network, which may be one of two."""
    order = findings.order
    if not order.of_mnist:
        return f"{order.artefact.of}, scale {order.scale}"
    network = order.network or default_network(order.scale)
    version = {"written": "as written", "tuned": "tuned"}[order.version]
    return f"{order.artefact.of}, {network}, scale {order.scale}, {version}"


def side_by_side(findings: Findings) -> Table:
    """Three lines a row: the paper's accuracy in %, ours with its 95% interval, the difference in points."""
    columns = filled_columns(findings)
    lines = [line for row in findings.rows for line in _lines(findings, row, columns)]
    heads = ["", "network", "", *(_head(findings, column) for column in columns)]
    return Table.of(title(findings), heads, lines, notes=tuple(notes(findings)))


def filled_columns(findings: Findings) -> list[str]:
    """Those in which any row has a number, the paper's or ours, or a reason why it has none."""
    every = findings.order.artefact.columns
    return [c for c in every if any(map(_filled, (_value(findings, row, c) for row in findings.rows)))]


def _filled(value: Value | None) -> bool:
    if value is None:
        return False
    return value.paper is not None or value.ours is not None or bool(value.reasons)


def _lines(findings: Findings, row: Row, columns: Sequence[str]) -> Iterator[TableRow]:
    """The paper's, with the row's name; ours and the difference where they say anything."""
    values = [_value(findings, row, column) for column in columns]
    network = findings.order.run(row, 0).config.model
    yield [findings.name(row), network, "paper", *(v.paper_cell() if v else NOTHING for v in values)]
    ours = [v.cell() if v else Cell(NOTHING) for v in values]
    differences = [v.difference_cell() if v else Cell(NOTHING) for v in values]
    for name, cells in {"ours": ours, "difference": differences}.items():
        if any(cell.text != NOTHING for cell in cells):
            yield ["", "", name, *cells]


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
    if order.scale == "smoke":
        yield NO_RESULT
    yield from trained_with(findings)
    if order.seeds > 1:
        ours = f"the mean of {order.seeds} seeds, with a 95% interval for other seeds and other images"
    else:
        ours = "of one seed, with Wilson's 95% interval"
    worst = f" The worst case is taken image by image over {_worst_of(findings)}."
    yield (
        f"Accuracy in %; ours is {ours}, each model at its best validation epoch."
        f"{worst if _has_worst(findings) else ''}"
    )
    if TIME in filled_columns(findings):
        yield _timed(findings)
    if order.attack_dtype != "float32":
        yield f"Attacks that need no precision search in {order.attack_dtype}; verdicts are those of float32."
    for row in findings.rows:
        for subject in findings.subjects[row.key]:
            yield from _troubles(f"{findings.name(row)}, seed {subject.course.run.seed}", subject)
    subjects = [subject for row in findings.rows for subject in findings.subjects[row.key]]
    for name in dict.fromkeys(flag.name for subject in subjects for flag in subject.flags):
        yield f"{name}: {MEANINGS[name]}."
    yield from missing(findings)


def _timed(findings: Findings) -> str:
    known = [findings.value(row, TIME).timing for row in findings.rows if TIME in findings.order.shown(row)]
    places = {(entry.get("device"), entry.get("cpu"), entry.get("threads")) for entry in known if entry}
    theirs = f"{TIME}: seconds a training step, the paper's on its GPU"
    if len(places) > 1:
        return f"{theirs}, ours not all on one machine with as many threads: they cannot be compared."
    return "".join([theirs, *(f", ours on {_machine(*place)}" for place in places), "."])


def _machine(device: str | None, cpu: str | None, threads: int | None) -> str:
    """What did the work: a GPU by its name, else the processor."""
    if device != "cpu":
        return device or "a machine that nobody noted"
    return f"{cpu}, {threads} thread{'' if threads == 1 else 's'}"


def missing(findings: Findings) -> Iterator[str]:
    """What an artefact lacks, and the command that makes it."""
    if findings.missing:
        how = f"To go on, with the same --workspace and --runs: {findings.go_on.command}"
        yield f"Missing: {'; '.join(findings.missing)}. {how}"


def _has_worst(findings: Findings) -> bool:
    rows = [row for row in findings.rows if WORST in findings.order.shown(row)]
    return any(findings.value(row, WORST).ours is not None for row in rows)


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
