"""App. E: a training that keeps its robustness and one that loses it, epoch by epoch."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from atlas.reports import plots
from atlas.reports.tables import Cell, Table
from atlas_paper import paper
from atlas_paper.artefact import Artefact, Row
from atlas_paper.comparison import TableRow, missing, title, trained_with
from atlas_paper.results import Findings
from atlas_paper.run_status import RunStatus

STABLE, COLLAPSED = (
    {f"method.{weight}": float(paper.text(f"{which}_{weight}")) for weight in ("alpha", "beta")}
    for which in ("stable", "collapse")
)
# The paper has no such pair for MNIST. These two differ as its two do, in that the second has no local part
# and a larger beta. Its start is clipped to the pixel box too: on the embedded data it collapses only so.
MNIST_STABLE = {"method.alpha": 1e-5, "method.beta": 0.3}
MNIST_COLLAPSED = {"method.alpha": 0.0, "method.beta": 1.0, "method.attack.clip_start": True}

SEEN = "collapse seen"
HEADS = (
    *("", "alpha", "beta", "epochs", "best validation robust", "lowest after it", "last"),
    *("J² at the best", "J² largest after it", "clean at the best", "clean at the end", SEEN),
)


def _row(task: str, which: str, changes: dict[str, Any]) -> Row:
    weights = f"alpha = {changes['method.alpha']:g}, beta = {changes['method.beta']:g}"
    clipped = ", start clipped" if changes.get("method.attack.clip_start") else ""
    return Row(task, "atlas-1", changes, key=f"{task}-{which}", label=f"ATLAS, {weights}{clipped}")


def summary(findings: Findings) -> Table:
    """What the figure shows, in numbers."""
    lines = [_line(findings, row) for row in findings.rows]
    notes = (
        "Accuracies in %, on validation images; J² is the mean of ||J(x')||² over batches of an epoch. The "
        f"paper, on CIFAR-10: a fall of more than {paper.text('collapse_fall')} points while J² rises "
        f"steeply, and clean accuracy of almost {paper.text('collapse_clean')}% afterwards.",
        *trained_with(findings),
        *missing(findings),
    )
    return Table.of(title(findings), HEADS, lines, notes=notes)


def _line(findings: Findings, row: Row) -> TableRow:
    course = findings.subjects[row.key][0].course
    what = [findings.name(row), f"{row.changes['method.alpha']:g}", f"{row.changes['method.beta']:g}"]
    best = course.best_epoch
    if best is None:
        return [*what, course.lacks, *["-"] * (len(HEADS) - 4)]
    epochs = course.epochs
    after = epochs[best:]
    robust = [epoch["val_robust"] for epoch in after]
    numbers = [robust[0], min(robust), robust[-1]]
    clean = [epochs[best]["val_clean"], epochs[-1]["val_clean"]]
    jacobians = [epochs[best]["jacobian"], max(epoch["jacobian"] for epoch in after)]
    seen = ", ".join(f"epoch {epoch + 1}" for epoch in course.collapses) or "no"
    return [
        *what,
        f"{len(epochs)}" + ("" if course.finished else f" ({course.state})"),
        *(Cell(f"{100 * number:.1f}", 100 * number) for number in numbers),
        *(Cell(f"{number:.3g}", number) for number in jacobians),
        *(Cell(f"{100 * number:.1f}", 100 * number) for number in clean),
        seen,
    ]


def epochs(findings: Findings) -> Table:
    """Every epoch of every row."""
    names = ("val_robust", "val_clean", "jacobian", "lr", "eps", "loss")
    lines: list[TableRow] = [
        [row.key, str(epoch["epoch"] + 1), *(Cell(f"{epoch[name]:g}", epoch[name]) for name in names)]
        for row in findings.rows
        for epoch in findings.subjects[row.key][0].course.epochs
    ]
    return Table.of(f"{title(findings)}: epochs", ("row", "epoch", *names), lines)


def draw(findings: Findings) -> Figure:
    """A line of panels for each training: the Jacobian, validation robust accuracy, clean accuracy."""
    begun = [row for row in findings.rows if findings.subjects[row.key][0].course.epochs]
    with plots.style():
        lines = max(1, len(begun))
        figure, axes = plots.subplots(lines, 3, width=plots.DOUBLE, squeeze=False)
        for panels, row in zip(axes, begun, strict=False):
            _draw(panels, findings.subjects[row.key][0].course)
            panels[1].set_title(plots.label(findings.name(row)))
        for axis in axes[-1]:
            axis.set_xlabel("epoch")
        seen = [line for axis in axes.flat for line in axis.lines if line.get_label() == SEEN]
        if seen:
            figure.legend(handles=seen[:1], loc="outside lower center")
        figure.suptitle(plots.label(f"{title(findings)}, validation images"), fontsize=8)
    return figure


def _draw(panels: Any, course: RunStatus) -> None:
    last = course.epochs[-1]
    a_step = (last["epoch"] + 1) / last["step"]
    probes = [record for record in course.records if record["kind"] == "probe"]
    at = [epoch["epoch"] + 1 for epoch in course.epochs]
    panels[0].plot([a_step * p["step"] for p in probes], [p["jacobian"] for p in probes], lw=0.8)
    panels[1].plot(at, [100 * epoch["val_robust"] for epoch in course.epochs])
    panels[2].plot(at, [100 * epoch["val_clean"] for epoch in course.epochs])
    names = ("||J(x')||²", "robust (%)", "clean (%)")
    for axis, name in zip(panels, names, strict=True):
        axis.set_ylabel(name)
        for epoch in course.collapses:
            axis.axvline(epoch + 1, color="red", ls=":", lw=0.8, label=SEEN)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in panels[1:]:
        axis.set_ylim(0, 100)


ARTEFACTS = (
    Artefact(
        name="collapse",
        of="App. E",
        about="catastrophic overfitting: the Jacobian, robust and clean accuracy by epoch, with and without",
        rows=(
            _row("mnist", "stable", MNIST_STABLE),
            _row("mnist", "collapse", MNIST_COLLAPSED),
            _row("cifar10", "stable", STABLE),
            _row("cifar10", "collapse", COLLAPSED),
        ),
        columns=(),
        figure=draw,
        tables={"summary": summary},
        data={"epochs": epochs},
    ),
)
