"""Figures 1 to 3, drawn from real models: the loss inside the ball before robust training and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from atlas.attacks import frozen
from atlas.attacks.gradients import input_gradients
from atlas.objectives import margin
from atlas.reports import plots
from atlas.reports.tables import Cell, Table
from atlas.threat import Threat
from atlas_paper.artefact import Artefact, ModelRow
from atlas_paper.results import Results, TableRow, missing, trained_with
from atlas_paper.workspace import Workspace

ROWS = (
    ModelRow("mnist", "natural", label="before robust training"),
    ModelRow("mnist", "atlas-1", {"method.beta": 0.0}, key="local", label="after the local part (ATLAS-l)"),
    ModelRow("mnist", "atlas-1", key="global", label="after the global part (ATLAS)"),
)
IMAGES = 200
BOUNDARY = math.log(2)
"""-log 0.5: above it the strongest wrong class has more than half of what the two classes share."""
POINTS = 81
T = torch.arange(-(POINTS // 2), POINTS // 2 + 1) / (POINTS // 2)
"""The points of a line, in units of eps; x itself is in the middle."""


def curves(results: Results) -> Tensor | None:
    """The losses of M models on N lines of P points, [2, M, N, P]; None where a model is not finished.

    First along each model's own line, then along the line of the first one's weak adversary.
    """
    found = [results.jobs[row.key][0] for row in ROWS]
    if not all(each.state == "finished" for each in found):
        return None
    config, folders = found[-1].job.run.config, tuple(each.run.path for each in found)
    return _curves(results.workspace, folders, config.data, config.threat)


@cache
def _curves(workspace: Workspace, folders: tuple[Path, ...], data: str, threat: Threat) -> Tensor:
    models, images = [workspace.model(folder) for folder in folders], workspace.test_images(data, IMAGES)
    device = next(models[0].parameters()).device
    x, y = images.pixels(device=device), images.y.to(device)
    own = [directions(model, x, y) for model in models]
    return torch.stack([losses_along(models, x, y, threat, d) for d in (own, [own[0]] * len(models))])


def directions(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The signs of the margin's gradient at x: the direction of one FGSM step from x, [N, C, H, W].

    The margin, because the gradient of cross-entropy is exactly 0 in floats where a model is certain.
    """
    with frozen(model):
        return input_gradients(model, x, y, margin, len(x)).sign()


@torch.no_grad()
def losses_along(
    models: Sequence[nn.Module], x: Tensor, y: Tensor, threat: Threat, along: Sequence[Tensor]
) -> Tensor:
    """Model m's loss on the points x + t eps d of the pixel box, with d = along[m]: [M, N, P].

    The loss is the cross-entropy of two classes, the right one and the strongest of the others, as in the
    paper's binary problem: log(1 + exp(max_{i != y} f_i - f_y)). A point is adversarial exactly where it is
    above -log 0.5.
    """
    found = []
    for model, direction in zip(models, along, strict=True):
        with frozen(model):
            points = (threat.project(x + float(step) * threat.eps * direction, x) for step in T)
            found.append(torch.stack([F.softplus(margin(model(point), y)) for point in points], 1))
    return torch.stack(found).cpu()


def select_image(losses: Tensor) -> int:
    """The image to show: the first whose adversarial points become fewer by the local part, then vanish.

    At best some are left in between. If there is none, it is the image that loses most of them.
    """
    before, local, last = (losses > BOUNDARY).sum(2)
    falls = (before > local) & (last == 0)
    for wanted in (falls & (local > 0), falls):
        if wanted.any():
            return int(wanted.nonzero()[0, 0])
    return int((before - last).argmax())


def summary(results: Results) -> Table:
    """How many images each model gets wrong somewhere on a line."""
    losses = curves(results)
    heads = ("", "wrong at x", "wrong somewhere on the first model's line", "wrong somewhere on its own line")
    if losses is None:
        return Table.of(results.request.title, heads, [], notes=tuple(missing(results)))
    lines: list[TableRow] = []
    for row, own, shared in zip(ROWS, *(losses > BOUNDARY), strict=True):
        wrong = (own[:, POINTS // 2], shared.any(1), own.any(1))
        lines.append([row.label, *(Cell.number(100 * float(which.float().mean())) for which in wrong)])
    note = (
        f"In % of {losses.shape[2]} test images. A line goes through x along the signs of the margin's "
        f"gradient at x, from -eps to eps. The upper panels show image {select_image(losses[1])}: the first "
        "whose adversarial points become fewer and then vanish or, if there is none, that loses most of them."
    )
    return Table.of(results.request.title, heads, lines, notes=(note, *trained_with(results)))


def data(results: Results) -> Table:
    """What is drawn, point by point."""
    heads = ("model", "t", "loss of the image shown", "wrong on the first line", "wrong on its own line")
    losses, lines = curves(results), list[TableRow]()
    if losses is not None:
        for row, own, shared in zip(ROWS, *losses, strict=True):
            wrong = [(each > BOUNDARY).float().mean(0) for each in (shared, own)]
            for numbers in zip(T, shared[select_image(losses[1])], *wrong, strict=True):
                lines.append([row.key, *(Cell.number(float(value), "{:.6g}") for value in numbers)])
    return Table.of(f"{results.request.title}: curves", heads, lines)


def draw(results: Results) -> Figure:
    """Above: one image, the same line for all, the model before dashed. Below: all images."""
    losses = curves(results)
    with plots.style():
        figure, axes = plots.subplots(2, 3, width=plots.DOUBLE, height=3.6, sharex=True, sharey="row")
        for k, row in enumerate(ROWS):
            above, below = axes[:, k]
            above.set_title(plots.label(row.label))
            below.set_xlabel("t: x + t eps d")
            if losses is not None:
                shown = losses[1, :, select_image(losses[1])]
                _draw_image(above, shown[k], shown[k - 1] if k else None)
                for name, style, which in (("a model's own", "-", 0), ("the first model's", "--", 1)):
                    share = 100 * (losses[which, k] > BOUNDARY).float().mean(0)
                    below.plot(T, share, style, color=plots.PALETTE[1], label=f"images along {name} line")
        axes[0][0].set_ylabel("loss, one image")
        axes[1][0].set(ylabel="images that err (%)", ylim=(0, 100))
        handles = [handle for line in axes for handle in line[-1].get_legend_handles_labels()[0]]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
        figure.suptitle(plots.label(results.request.title), fontsize=8)
    return figure


def _draw_image(axis: Any, losses: Tensor, before: Tensor | None) -> None:
    if before is not None:
        axis.plot(T, before, "--", color="gray", lw=0.8, label="the model before")
    axis.plot(T, losses, color=plots.PALETTE[0])
    wrong = losses > BOUNDARY
    axis.plot(T[wrong], losses[wrong], "o", color="red", ms=2, label="adversarial")
    axis.axhline(BOUNDARY, color="black", ls=":", lw=0.8, label="boundary, -log 0.5")
    axis.set_yscale("symlog", linthresh=1)  # the loss of a model that is not robust goes far above it
    axis.set_ylim(bottom=-0.1)
    for name, t, position in (("x", 0.0, 0.03), ("x'", 1.0, 0.88)):
        axis.axvline(t, color="gray", lw=0.5)
        axis.text(position, 0.55, name, transform=axis.get_xaxis_transform())


ARTEFACT = Artefact(
    name="loss-curves",
    of="Figures 1 to 3",
    rows=ROWS,
    columns={},
    figure=draw,
    tables={"summary": summary},
    data={"curves": data},
)
