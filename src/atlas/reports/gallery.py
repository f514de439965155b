"""The gallery: images before and after an attack, with the predictions of the models."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from atlas import data
from atlas.data import Images
from atlas.errors import AtlasError, CheckpointError
from atlas.evaluation import Report
from atlas.evaluation.evaluation_folder import EvaluationFolder, file_of
from atlas.reports.collect import Given, ReportedModel
from atlas.reports.quick_attack import SHOWN, Study
from atlas.threat import THREATS, Linf, Threat

LESS, MORE = (33, 102, 172), (178, 24, 43)
"""Blue where the attack darkened a gray pixel, red where it brightened it."""


@dataclass(frozen=True)
class View:
    """An image after an attack, as data URIs; they are empty where there is nothing to show."""

    name: str
    """The model, or the attack and its step."""
    x_adv: str = ""
    change: str = ""
    """x' - x, `scale` times as large."""
    scale: float = 1.0
    before: str = ""
    """The prediction with its confidence, like `after`."""
    after: str = ""
    verdict: str = ""
    """"held", "fooled" or "wrong before"."""


@dataclass(frozen=True)
class Exhibit:
    """One image before and after attacks; `x` is empty where the data set cannot be read."""

    id: int
    class_name: str
    x: str
    views: tuple[View, ...]


def make_gallery(studies: Mapping[str, Study]) -> list[Exhibit]:
    """The first image of each class that a model gets right, else its first, as all models see it."""
    shown = [
        (not _right(study, index), index, place, study)
        for study in studies.values()
        for place, index in enumerate(study.shown.tolist())
    ]
    exhibits: dict[int, Exhibit] = {}
    for _, index, place, study in sorted(shown, key=lambda item: item[:2]):
        label = int(study.y[index])
        if label not in exhibits:
            views = tuple(_view(name, each, index) for name, each in studies.items())
            number, name = int(study.images.ids[index]), study.named(label)
            exhibits[label] = Exhibit(number, name, png(study.x[place]), views)
    return [exhibits[label] for label in sorted(exhibits)]


def _right(study: Study, index: int) -> bool:
    return bool(study.logits[index].argmax() == study.y[index])


def _view(name: str, study: Study, index: int) -> View:
    chances = [logits[index].double().softmax(0) for logits in (study.logits, study.logits_adv)]
    before, after = (f"{study.named(int(p.argmax()))} ({float(p.max()):.0%})" for p in chances)
    if not _right(study, index):  # so that its study need not have kept the image
        return View(name, before=before, after=after, verdict="wrong before")
    place = study.shown.tolist().index(index)
    x, x_adv, verdict = study.x[place], study.x_adv[place], "held" if study.stands[index] else "fooled"
    return View(name, png(x_adv), *enlarged_change(study.threat, x, x_adv), before, after, verdict)


def kept_by_model(runs: Sequence[ReportedModel], given: Given) -> dict[str, list[Exhibit]]:
    """Images that fool each model, of the evaluation that kept images of the most classes."""
    found = {}
    for run in runs:
        galleries = [kept_images(each, _evaluated(each, run, given)) for each in run.evaluations.values()]
        found[run.name] = max(galleries, key=len, default=[])
    return found


def _evaluated(report: Report, run: ReportedModel, given: Given) -> Images | None:
    """The data set of an evaluation that kept images, where it can be read."""
    if report.folder is None or not any(report.folder.glob("images-*")):
        return None
    if given.data and not run.data:
        return data.load(given.data, train=False, root=given.root)
    with suppress(AtlasError):  # its name may be the caller's own, or it is not on this machine
        return data.load(run.data or str(report.about["data"]), train=False, root=given.root)
    return None


def kept_images(report: Report, images: Images | None = None) -> list[Exhibit]:
    """Of each class the first image that the evaluation kept, with the original where `images` hold it."""
    found: dict[int, Exhibit] = {}
    originals = _originals(report, images)
    threat = THREATS[report.about["threat"]["name"]](report.about["threat"]["eps"])
    for label, result in report.results.items():
        file = file_of("images", label)
        stored = EvaluationFolder(report.folder).load(file) if report.folder else None
        if stored is None:
            continue
        places = result.fooled.nonzero()[:, 0].tolist()
        if stored["ids"].tolist() != report.ids[places].tolist():
            raise CheckpointError(
                f"{report.folder}/{file} does not hold the images that {label} fooled: evaluate again"
            )
        for place, x_adv in zip(places, stored["x_adv"], strict=True):
            y = int(report.y[place])
            if y in found or len(found) == SHOWN:
                continue
            x = None if originals is None else originals.pixels([place])[0]
            change = ("", 1.0) if x is None else enlarged_change(threat, x, x_adv)
            view = View(f"{label}, step {int(result.step[place]) + 1}", png(x_adv), *change)
            found[y] = Exhibit(int(report.ids[place]), report.named(y), "" if x is None else png(x), (view,))
    return [found[y] for y in sorted(found)]


def _originals(report: Report, images: Images | None) -> Images | None:
    """The evaluated images, in the order of the report, if these images hold exactly them."""
    places = {} if images is None else {number: place for place, number in enumerate(images.ids.tolist())}
    if images is None or not places.keys() >= set(report.ids.tolist()):
        return None
    chosen = images.subset([places[number] for number in report.ids.tolist()])
    return chosen if chosen.fingerprint() == report.about["data_hash"] else None


def png(x: Tensor) -> str:
    """An image [C, H, W] in [0, 1] as a data URI; the first channel alone unless there are three."""
    levels = (x.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return _uri(levels[0] if len(levels) != 3 else np.moveaxis(levels, 0, 2))


def enlarged_change(threat: Threat, x: Tensor, x_adv: Tensor) -> tuple[str, float]:
    """x' - x, around middle gray, and of gray images in blue and red on white; and how much it is enlarged.

    Its largest possible value (L-inf), or its own, becomes 1.
    """
    largest = threat.eps if isinstance(threat, Linf) else float((x_adv - x).abs().max())
    scale = 1 / largest if largest > 0 else 1.0
    change = ((x_adv - x) * scale).clamp(-1, 1)
    if len(change) == 3:
        return png(0.5 + change / 2), scale
    gray = change[:1].permute(1, 2, 0).numpy()
    end = np.where(gray < 0, np.array(LESS), np.array(MORE))
    return _uri((255 * (1 - abs(gray)) + end * abs(gray)).round().astype(np.uint8)), scale


def _uri(pixels: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
