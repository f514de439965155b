"""Figures 1 to 3, drawn from real models: the loss inside the ball before robust training and after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from atlas.attacks import frozen
from atlas.data import Images
from atlas.distributed.launch import checked_device
from atlas.objectives import margin
from atlas.reports import plots
from atlas.reports.tables import Cell, Table
from atlas.threat import Threat
from atlas.training import load_model
from atlas_paper.artefact import Artefact, ModelRow
from atlas_paper.results import Results
from atlas_paper.write import TableRow, missing, title, trained_with

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


@dataclass(frozen=True)
class Curves:
    """All that is drawn; the losses of M models on N lines of P points are [M, N, P]."""

    shared: Tensor
    """Every model along the line of the first one's weak adversary."""
    own: Tensor
    """Each model along its own line."""
    shown: int
    """The image of the upper panels."""
    like_it: int


def curves(results: Results) -> Curves | None:
    """None where a model is not finished."""
    statuses = [results.seeds[row.key][0].status for row in ROWS]
    folders = tuple(status.folder for status in statuses if status.finished and status.folder)
    if len(folders) < len(ROWS):
        return None
    last = statuses[-1].run.config
    return _curves(folders, results.runner.test_images(last.data, IMAGES), last.threat, results.runner.device)


@cache
def _curves(folders: tuple[Path, ...], images: Images, threat: Threat, device: str | None) -> Curves:
    place = checked_device(device)
    models = [load_model(folder, device=place) for folder in folders]
    x, y = images.pixels(device=place), images.y.to(place)
    own = [directions(model, x, y) for model in models]
    shared = losses_along(models, x, y, threat, [own[0]] * len(models))
    return Curves(shared, losses_along(models, x, y, threat, own), *select_image(shared))


def directions(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The signs of the margin's gradient at x: the direction of one FGSM step from x, [N, C, H, W].

    The margin, because the gradient of cross-entropy is exactly 0 in floats where a model is certain.
    """
    with frozen(model), torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(margin(model(x), y).sum(), x)
    return gradient.sign()


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


def select_image(losses: Tensor) -> tuple[int, int]:
    """(the image to show, how many are like it).

    The first whose line has adversarial points before, fewer after the local part and none after the global
    part, with some left in between if there is such an image; else the one that loses most of its
    adversarial points from the first model to the last.
    """
    before, local, last = (losses > BOUNDARY).sum(2)
    falls = (before > local) & (last == 0)
    for wanted in (falls & (local > 0), falls):
        if wanted.any():
            return int(wanted.nonzero()[0, 0]), int(wanted.sum())
    return int((before - last).argmax()), 0


def summary(results: Results) -> Table:
    """How many images each model gets wrong somewhere on a line."""
    found = curves(results)
    heads = ("", "wrong at x", "wrong somewhere on the first model's line", "wrong somewhere on its own line")
    if found is None:
        return Table.of(title(results), heads, [], notes=tuple(missing(results)))
    lines: list[TableRow] = []
    for row, shared, own in zip(ROWS, found.shared > BOUNDARY, found.own > BOUNDARY, strict=True):
        wrong = (own[:, POINTS // 2], shared.any(1), own.any(1))
        lines.append([row.label, *(Cell.number(100 * float(which.float().mean())) for which in wrong)])
    note = (
        f"In % of {found.own.shape[1]} test images. A line goes through x along the signs of the "
        f"margin's gradient at x, from -eps to eps. The upper panels show image {found.shown}, {_why(found)}."
    )
    return Table.of(title(results), heads, lines, notes=(note, *trained_with(results)))


def _why(found: Curves) -> str:
    """Why this image is the one that is shown."""
    fall = "adversarial points become fewer and then vanish"
    if not found.like_it:
        return f"since for no image do {fall}"
    return f"the {'only one' if found.like_it == 1 else f'first of {found.like_it}'} whose {fall}"


def data(results: Results) -> Table:
    """What is drawn, point by point."""
    heads = ("model", "t", "loss of the image shown", "wrong on the first line", "wrong on its own line")
    found, lines = curves(results), list[TableRow]()
    for k, row in enumerate(ROWS if found else ()):
        assert found is not None
        wrong = [(losses[k] > BOUNDARY).float().mean(0) for losses in (found.shared, found.own)]
        points = zip(T, found.shared[k, found.shown], *wrong, strict=True)
        lines += [[row.key, *(Cell.number(float(v), "{:.6g}") for v in numbers)] for numbers in points]
    return Table.of(f"{title(results)}: curves", heads, lines)


def draw(results: Results) -> Figure:
    """Above: one image, the same line for all, the model before dashed. Below: all images."""
    found = curves(results)
    with plots.style():
        figure, axes = plots.subplots(2, 3, width=plots.DOUBLE, height=3.6, sharex=True, sharey="row")
        for k, row in enumerate(ROWS):
            axes[0][k].set_title(plots.label(row.label))
            axes[1][k].set_xlabel("t: x + t eps d")
            if found is not None:
                _draw_losses(axes[0][k], found.shared[:, found.shown], k)
                _draw_shares(axes[1][k], found, k)
        axes[0][0].set_ylabel("loss, one image")
        axes[1][0].set_ylabel("images that err (%)")
        handles = [handle for line in axes for handle in line[-1].get_legend_handles_labels()[0]]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
        figure.suptitle(plots.label(title(results)), fontsize=8)
    return figure


def _draw_losses(axis: Any, losses: Tensor, k: int) -> None:
    if k:
        axis.plot(T, losses[k - 1], "--", color="gray", lw=0.8, label="the model before")
    axis.plot(T, losses[k], color=plots.PALETTE[0])
    above = losses[k] > BOUNDARY
    axis.plot(T[above], losses[k][above], "o", color="red", ms=2, label="adversarial")
    axis.axhline(BOUNDARY, color="black", ls=":", lw=0.8, label="boundary, -log 0.5")
    axis.set_yscale(
        "symlog", linthresh=1
    )  # the loss of a model that is not robust goes far above the boundary
    axis.set_ylim(bottom=-0.1)
    for name, t, position in (("x", 0.0, 0.03), ("x'", 1.0, 0.88)):
        axis.axvline(t, color="gray", lw=0.5)
        axis.text(position, 0.55, name, transform=axis.get_xaxis_transform())


def _draw_shares(axis: Any, found: Curves, k: int) -> None:
    names = {
        "images along a model's own line": found.own,
        "images along the first model's line": found.shared,
    }
    for style, (name, losses) in zip(("-", "--"), names.items(), strict=True):
        share = 100 * (losses[k] > BOUNDARY).float().mean(0)
        axis.plot(T, share, style, color=plots.PALETTE[1], label=name)
    axis.set_ylim(0, 100)


ARTEFACTS = (
    Artefact(
        name="loss-curves",
        of="Figures 1 to 3",
        rows=ROWS,
        columns=(),
        figure=draw,
        tables={"summary": summary},
        data={"curves": data},
    ),
)
