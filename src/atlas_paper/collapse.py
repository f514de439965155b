"""App. E: a training that keeps its robustness and one that loses it, epoch by epoch."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from atlas.reports import plots
from atlas.reports.tables import Cell, Table
from atlas_paper import paper
from atlas_paper.artefact import Artefact, ModelRow
from atlas_paper.cells import JobResult
from atlas_paper.results import Results, TableRow, missing, trained_with

SEEN = "collapse seen"
HEADS = (
    *("", "alpha", "beta", "epochs", "best validation robust", "lowest after it", "last"),
    *("J² at the best", "J² largest after it", "clean at the best", "clean at the end", SEEN),
)
EPOCH_HEADS = ("val_robust", "val_clean", "jacobian", "lr", "eps", "loss")


def _row(task: str, which: str, alpha: float, beta: float, *, clipped: bool = False) -> ModelRow:
    changes: dict[str, Any] = {"method.alpha": alpha, "method.beta": beta}
    changes |= {"method.attack.clip_start": True} if clipped else {}
    label = f"ATLAS, alpha = {alpha:g}, beta = {beta:g}{', start clipped' if clipped else ''}"
    return ModelRow(task, "atlas-1", changes, key=f"{task}-{which}", label=label)


def summary(results: Results) -> Table:
    """What the figure shows, in numbers."""
    notes = (
        "Accuracies in %, on validation images; J² is the mean of ||J(x')||² over batches of an epoch. The "
        f"paper, on CIFAR-10: a fall of more than {paper.text('collapse_fall')} points while J² rises "
        f"steeply, and clean accuracy of almost {paper.text('collapse_clean')}% afterwards.",
        *trained_with(results),
        *missing(results),
    )
    lines: list[TableRow] = []
    for row in results.rows:
        result = results.jobs[row.key][0]
        weights = [f"{row.changes[f'method.{name}']:g}" for name in ("alpha", "beta")]
        course = _course(result) or [result.lacks, *["-"] * (len(HEADS) - 4)]
        lines.append([results.request.row_name(row), *weights, *course])
    return Table.of(results.request.title, HEADS, lines, notes=notes)


def _course(result: JobResult) -> TableRow:
    best, epochs = result.best_epoch, result.epochs
    if best is None:
        return []
    robust = [100 * epoch["val_robust"] for epoch in epochs[best:]]
    jacobians = [epoch["jacobian"] for epoch in epochs[best:]]
    return [
        f"{len(epochs)}" + ("" if result.state == "finished" else f" ({result.state})"),
        *(Cell.number(number) for number in (robust[0], min(robust), robust[-1])),
        *(Cell.number(number, "{:.3g}") for number in (jacobians[0], max(jacobians))),
        *(Cell.number(100 * epoch["val_clean"]) for epoch in (epochs[best], epochs[-1])),
        ", ".join(f"epoch {epoch + 1}" for epoch in result.collapses) or "no",
    ]


def epochs(results: Results) -> Table:
    """Every epoch of every row."""
    lines: list[TableRow] = [
        [row.key, str(epoch["epoch"] + 1), *(Cell.number(epoch[name], "{:g}") for name in EPOCH_HEADS)]
        for row in results.rows
        for epoch in results.jobs[row.key][0].epochs
    ]
    return Table.of(f"{results.request.title}: epochs", ("row", "epoch", *EPOCH_HEADS), lines)


def draw(results: Results) -> Figure:
    """A line of panels for each training: the Jacobian, validation robust accuracy, clean accuracy."""
    begun = [row for row in results.rows if results.jobs[row.key][0].epochs]
    with plots.style():
        figure, axes = plots.subplots(max(1, len(begun)), 3, width=plots.DOUBLE, squeeze=False)
        for panels, row in zip(axes, begun, strict=False):
            _draw(panels, results.jobs[row.key][0])
            panels[1].set_title(plots.label(results.request.row_name(row)))
        for axis in axes[-1]:
            axis.set_xlabel("epoch")
        seen = [line for axis in axes.flat for line in axis.lines if line.get_label() == SEEN]
        if seen:
            figure.legend(handles=seen[:1], loc="outside lower center")
        figure.suptitle(plots.label(f"{results.request.title}, validation images"), fontsize=8)
    return figure


def _draw(panels: Any, result: JobResult) -> None:
    epochs, last = result.epochs, result.epochs[-1]
    per_step = (last["epoch"] + 1) / last["step"]
    probes = [record for record in result.run.records if record["kind"] == "probe"]
    panels[0].plot([per_step * p["step"] for p in probes], [p["jacobian"] for p in probes], lw=0.8)
    for axis, name in zip(panels[1:], ("val_robust", "val_clean"), strict=True):
        axis.plot([epoch["epoch"] + 1 for epoch in epochs], [100 * epoch[name] for epoch in epochs])
        axis.set_ylim(0, 100)
    for axis, name in zip(panels, ("||J(x')||²", "robust (%)", "clean (%)"), strict=True):
        axis.set_ylabel(name)
        for epoch in result.collapses:
            axis.axvline(epoch + 1, color="red", ls=":", lw=0.8, label=SEEN)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))


ARTEFACT = Artefact(
    name="collapse",
    of="App. E",
    rows=(
        # The paper has no such pair for MNIST. These two differ as its two do: the second has no local part
        # and a larger beta. Its start is clipped to the pixel box too: on the embedded data it only
        # collapses so.
        _row("mnist", "stable", 1e-5, 0.3),
        _row("mnist", "collapse", 0.0, 1.0, clipped=True),
        _row("cifar10", "stable", paper.text("stable_alpha"), float(paper.text("stable_beta"))),
        _row("cifar10", "collapse", float(paper.text("collapse_alpha")), float(paper.text("collapse_beta"))),
    ),
    columns={},
    figure=draw,
    tables={"summary": summary},
    data={"epochs": epochs},
)
