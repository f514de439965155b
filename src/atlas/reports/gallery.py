"""The gallery: images before and after an attack, with the predictions of the models."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from atlas.data import Images
from atlas.errors import CheckpointError
from atlas.evaluation import Report
from atlas.evaluation.evaluation_folder import EvaluationFolder, slug
from atlas.reports.quick_attack import SHOWN, Study
from atlas.threat import L2, Linf, Threat


@dataclass(frozen=True)
class View:
    """One model's view of one image."""

    model: str
    x_adv: str
    """Empty, like `change`, if the model was wrong before the attack."""
    change: str
    """x' - x, enlarged."""
    scale: float
    before: str
    """The prediction with its confidence, like `after`."""
    after: str
    verdict: str
    """"held", "fooled" or "wrong before"."""


@dataclass(frozen=True)
class Exhibit:
    """One image as all models see it."""

    id: int
    name: str
    """Of its class."""
    x: str
    views: tuple[View, ...]


def make_gallery(studies: Mapping[str, Study]) -> list[Exhibit]:
    """The first image of each class that a model gets right, else its first."""
    kept = [
        (index, place, study)
        for study in studies.values()
        for place, index in enumerate(study.shown.tolist())
    ]
    exhibits: dict[int, Exhibit] = {}
    for index, place, study in sorted(kept, key=lambda item: (not _right(item[2], item[0]), item[0])):
        label = int(study.y[index])
        if label not in exhibits:
            views = tuple(_view(name, each, index) for name, each in studies.items())
            image, name = png(study.x[place]), study.named(label)
            exhibits[label] = Exhibit(int(study.ids[index]), name, image, views)
    return [exhibits[label] for label in sorted(exhibits)]


def _right(study: Study, index: int) -> bool:
    return bool(study.logits[index].argmax() == study.y[index])


def _view(name: str, study: Study, index: int) -> View:
    before, after = (_prediction(study, logits[index]) for logits in (study.logits, study.logits_adv))
    if not _right(study, index):  # so that its study need not have kept the image
        return View(name, "", "", 1.0, before, after, "wrong before")
    place = study.shown.tolist().index(index)
    x, x_adv = study.x[place], study.x_adv[place]
    scale = enlarged(study.threat, x, x_adv)
    verdict = "held" if study.stands[index] else "fooled"
    return View(name, png(x_adv), difference(x, x_adv, scale), scale, before, after, verdict)


def _prediction(study: Study, logits: Tensor) -> str:
    chances = logits.double().softmax(0)
    return f"{study.named(int(chances.argmax()))} ({float(chances.max()):.0%})"


@dataclass(frozen=True)
class Kept:
    """An image that fooled the model in an evaluation that kept such images."""

    id: int
    name: str
    """Of its class."""
    attack: str
    step: int
    """From 1, of the attack."""
    x_adv: str
    x: str = ""
    """Empty, like `change`, where the data set cannot be read."""
    change: str = ""
    scale: float = 1.0


def kept_images(report: Report, images: Images | None = None) -> list[Kept]:
    """Of each class the first image that the evaluation kept, with the original where `images` hold it."""
    found: dict[int, Kept] = {}
    originals = _originals(report, images)
    for label, result in report.results.items():
        kept = EvaluationFolder(report.folder).load_images(label) if report.folder else None
        if kept is None:
            continue
        places = result.fooled.nonzero()[:, 0].tolist()
        if kept[0].tolist() != report.ids[places].tolist():
            raise CheckpointError(
                f"{report.folder}/images-{slug(label)}.safetensors does not hold the images that {label} "
                "fooled: evaluate again"
            )
        for place, x_adv in zip(places, kept[1], strict=True):
            y = int(report.y[place])
            if y not in found and len(found) < SHOWN:
                x = None if originals is None else originals.pixels([place])[0]
                found[y] = _kept(report, label, place, x_adv, x)
    return [found[y] for y in sorted(found)]


def _kept(report: Report, label: str, place: int, x_adv: Tensor, x: Tensor | None) -> Kept:
    step = int(report.results[label].step[place]) + 1
    shown = Kept(int(report.ids[place]), report.named(int(report.y[place])), label, step, png(x_adv))
    if x is None:
        return shown
    name, eps = report.about["threat"]["name"], report.about["threat"]["eps"]
    scale = enlarged(Linf(eps) if name == "linf" else L2(eps), x, x_adv)
    return replace(shown, x=png(x), change=difference(x, x_adv, scale), scale=scale)


def _originals(report: Report, images: Images | None) -> Images | None:
    """The evaluated images, in the order of the report, if these images hold exactly them."""
    if images is None:
        return None
    places = {number: place for place, number in enumerate(images.ids.tolist())}
    wanted = [places.get(number, -1) for number in report.ids.tolist()]
    if -1 in wanted:
        return None
    chosen = images.subset(wanted)
    return chosen if chosen.fingerprint() == report.about["data_hash"] else None


LESS, MORE = (33, 102, 172), (178, 24, 43)
"""Blue where the attack darkened a gray pixel, red where it brightened it."""


def png(x: Tensor) -> str:
    """An image [C, H, W] in [0, 1] as a data URI; the first channel alone unless there are three."""
    levels = (x.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return _uri(levels[0] if len(levels) != 3 else np.moveaxis(levels, 0, 2))


def difference(x: Tensor, x_adv: Tensor, scale: float) -> str:
    """x' - x, `scale` times as large: around middle gray, and of gray images in blue and red on white."""
    change = ((x_adv - x) * scale).clamp(-1, 1)
    if len(change) == 3:
        return png(0.5 + change / 2)
    share = change[:1].abs().permute(1, 2, 0).numpy()
    end = np.where(change[:1].permute(1, 2, 0).numpy() < 0, np.array(LESS), np.array(MORE))
    return _uri((255 * (1 - share) + end * share).round().astype(np.uint8))


def enlarged(threat: Threat, x: Tensor, x_adv: Tensor) -> float:
    """By how much a perturbation is enlarged: its largest possible value (L-inf), or its own, becomes 1."""
    largest = threat.eps if isinstance(threat, Linf) else float((x_adv - x).abs().max())
    return 1 / largest if largest > 0 else 1.0


def _uri(pixels: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
