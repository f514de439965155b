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
from atlas.objectives import margin
from atlas.reports import plots
from atlas.reports.tables import Cell, Table
from atlas.threat import Threat
from atlas.training import load_model
from atlas.training.run import checked_device
from atlas_paper.artefact import Artefact, Row
from atlas_paper.comparison import missing, title, trained_with
from atlas_paper.results import Findings

ROWS = (
    Row("mnist", "natural", label="before robust training"),
    Row("mnist", "atlas-1", {"method.beta": 0.0}, key="local", label="after the local part (ATLAS-l)"),
    Row("mnist", "atlas-1", key="global", label="after the global part (ATLAS)"),
)
IMAGES = 200


@dataclass(frozen=True)
class Curves:
    """All that is drawn."""

    shared: Line
    """Every model along the line of the first one's weak adversary."""
    own: Line
    """Each model along the line of its own."""
    shown: int
    """The image of the upper panels."""
    like_it: int


def curves(findings: Findings) -> Curves | None:
    """None where a model is not there yet."""
    courses = [findings.subjects[row.key][0].course for row in ROWS]
    folders = tuple(course.folder for course in courses if course.finished and course.folder)
    if len(folders) < len(ROWS):
        return None
    last = courses[-1].run.config
    return _curves(folders, findings.lab.test_images(last.data, IMAGES), last.threat, findings.lab.device)


@cache
def _curves(folders: tuple[Path, ...], images: Images, threat: Threat, device: str | None) -> Curves:
    place = checked_device(device)
    models = [load_model(folder, device=place) for folder in folders]
    x, y = images.pixels(device=place), images.y.to(place)
    own = [directions(model, x, y) for model in models]
    shared = losses_along(models, x, y, threat, [own[0]] * len(models))
    shown, like_it = telling_image(shared)
    return Curves(shared, losses_along(models, x, y, threat, own), shown, like_it)


def summary(findings: Findings) -> Table:
    """How many images each model gets wrong somewhere on a line."""
    found = curves(findings)
    heads = ("", "wrong at x", "wrong somewhere on the first model's line", "wrong somewhere on its own line")
    if found is None:
        return Table.of(title(findings), heads, [], notes=tuple(missing(findings)))
    middle = len(found.own.t) // 2
    lines: list[list[Cell | str]] = []
    for k, row in enumerate(ROWS):
        shared, own = found.shared.adversarial[k], found.own.adversarial[k]
        wrong = (own[:, middle], shared.any(1), own.any(1))
        shares = [100 * float(which.float().mean()) for which in wrong]
        lines.append([row.label, *(Cell(f"{share:.1f}", share) for share in shares)])
    note = (
        f"In % of {found.own.losses.shape[1]} test images. A line goes through x along the signs of the "
        f"margin's gradient at x, from -eps to eps. The upper panels show image {found.shown}, {_why(found)}."
    )
    return Table.of(title(findings), heads, lines, notes=(note, *trained_with(findings)))


def _why(found: Curves) -> str:
    """Why this image is the one that is shown."""
    fall = "adversarial points become fewer and then vanish"
    if not found.like_it:
        return f"for of none do {fall}"
    return f"the {'only one' if found.like_it == 1 else f'first of {found.like_it}'} whose {fall}"


def data(findings: Findings) -> Table:
    """What is drawn, point by point."""
    heads = ("model", "t", "loss of the image shown", "wrong on the first line", "wrong on its own line")
    found = curves(findings)
    lines = [line for k, row in enumerate(ROWS) if found for line in _points(found, k, row.key)]
    return Table.of(f"{title(findings)}: curves", heads, lines)


def _points(found: Curves, k: int, name: str) -> list[list[Cell | str]]:
    """Those of one model."""
    loss = found.shared.losses[k, found.shown]
    wrong = [line.adversarial[k].float().mean(0) for line in (found.shared, found.own)]
    points = zip(found.own.t, loss, *wrong, strict=True)
    return [[name, *(Cell(f"{float(v):.6g}", float(v)) for v in numbers)] for numbers in points]


def draw(findings: Findings) -> Figure:
    """Above: one image, the same line for all, the model before dashed. Below: all images."""
    found = curves(findings)
    with plots.style():
        figure, axes = plots.subplots(2, 3, width=plots.DOUBLE, height=3.6, sharex=True, sharey="row")
        for k, row in enumerate(ROWS):
            axes[0][k].set_title(plots.label(row.label))
            axes[1][k].set_xlabel("t: x + t eps d")
            if found is not None:
                _loss(axes[0][k], found, k)
                _share(axes[1][k], found, k)
        axes[0][0].set_ylabel("loss, one image")
        axes[1][0].set_ylabel("images that err (%)")
        handles = [handle for line in axes for handle in line[-1].get_legend_handles_labels()[0]]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
        figure.suptitle(plots.label(title(findings)), fontsize=8)
    return figure


def _loss(axis: Any, found: Curves, k: int) -> None:
    t, losses = found.shared.t, found.shared.losses[:, found.shown]
    if k:
        axis.plot(t, losses[k - 1], "--", color="gray", lw=0.8, label="the model before")
    axis.plot(t, losses[k], color=plots.PALETTE[0])
    above = losses[k] > BOUNDARY
    axis.plot(t[above], losses[k][above], "o", color="red", ms=2, label="adversarial")
    axis.axhline(BOUNDARY, color="black", ls=":", lw=0.8, label="boundary, -log 0.5")
    axis.set_yscale("symlog", linthresh=1)  # a model that nobody has made robust goes far above the boundary
    axis.set_ylim(bottom=-0.1)
    for place in (0.0, 1.0):
        axis.axvline(place, color="gray", lw=0.5)
    for name, place in {"x": 0.03, "x'": 0.88}.items():
        axis.text(place, 0.55, name, transform=axis.get_xaxis_transform())


def _share(axis: Any, found: Curves, k: int) -> None:
    names = {
        "images along a model's own line": found.own,
        "images along the first model's line": found.shared,
    }
    for style, (name, line) in zip(("-", "--"), names.items(), strict=True):
        share = 100 * line.adversarial[k].float().mean(0)
        axis.plot(line.t, share, style, color=plots.PALETTE[1], label=name)
    axis.set_ylim(0, 100)


ARTEFACTS = (
    Artefact(
        name="loss-curves",
        of="Figures 1 to 3",
        about="the loss along a line inside the ball, before and after the local and the global part",
        rows=ROWS,
        columns=(),
        figure=draw,
        tables={"summary": summary},
        data={"curves": data},
    ),
)


BOUNDARY = math.log(2)
"""-log 0.5: above it the strongest wrong class has more than half of what the two classes share."""
POINTS = 81
"""On a line, x itself in the middle."""


@dataclass(frozen=True)
class Line:
    """The losses of several models along lines through N images: t [P] in units of eps, losses [M, N, P]."""

    t: Tensor
    losses: Tensor

    @property
    def adversarial(self) -> Tensor:
        """Where a model errs, bool [M, N, P]."""
        return self.losses > BOUNDARY


def directions(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The signs of the margin's gradient at x: where one step of FGSM from x goes, [N, C, H, W].

    The margin, because the gradient of cross-entropy is exactly 0 in floats where a model is sure.
    """
    with frozen(model), torch.enable_grad():
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(margin(model(x), y).sum(), x)
    return gradient.sign()


@torch.no_grad()
def losses_along(
    models: Sequence[nn.Module], x: Tensor, y: Tensor, threat: Threat, along: Sequence[Tensor]
) -> Line:
    """Model m's loss on the points x + t eps d of the pixel box, with d = along[m] [N, C, H, W].

    The loss is the cross-entropy of two classes, the right one and the strongest of the others, as in the
    paper's binary problem: log(1 + exp(max_{i != y} f_i - f_y)). A point is adversarial exactly where it is
    above -log 0.5.
    """
    t = torch.arange(-(POINTS // 2), POINTS // 2 + 1, device=x.device) / (POINTS // 2)
    found = []
    for model, direction in zip(models, along, strict=True):
        with frozen(model):
            points = (threat.project(x + float(step) * threat.eps * direction, x) for step in t)
            found.append(torch.stack([F.softplus(margin(model(point), y)) for point in points], 1))
    return Line(t.cpu(), torch.stack(found).cpu())


def telling_image(line: Line) -> tuple[int, int]:
    """(the image to show, how many are like it).

    The first whose line has adversarial points before, fewer after the local part and none after the global
    part, with some left in between if there is such an image; else the one that loses most of its
    adversarial points from the first model to the last.
    """
    before, local, last = line.adversarial.sum(2)
    falls = (before > local) & (last == 0)
    for wanted in (falls & (local > 0), falls):
        if wanted.any():
            return int(wanted.nonzero()[0, 0]), int(wanted.sum())
    return int((before - last).argmax()), 0
