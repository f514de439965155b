"""The gallery: what an attack does to images, and what the models say before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from atlas.report import pictures
from atlas.report.study import Study


@dataclass(frozen=True)
class Answer:
    """What a model says of an image, and how sure it is."""

    label: int
    confidence: float

    @classmethod
    def of(cls, logits: Tensor) -> Answer:
        chances = logits.double().softmax(0)
        return cls(int(chances.argmax()), float(chances.max()))

    def __str__(self) -> str:
        return f"{self.label} ({self.confidence:.0%})"


@dataclass(frozen=True)
class View:
    """One model's view of one image."""

    model: str
    x_adv: str
    change: str
    """x' - x, enlarged."""
    scale: float
    before: Answer
    after: Answer
    verdict: str
    """"held", "fooled" or "wrong before"."""


@dataclass(frozen=True)
class Exhibit:
    """One image as all models see it."""

    id: int
    label: int
    x: str
    views: tuple[View, ...]


def gallery(studies: Mapping[str, Study]) -> list[Exhibit]:
    """The shown images of studies of the same images, each with a view a model."""
    first = next(iter(studies.values()))
    exhibits = []
    for place, index in enumerate(first.shown.tolist()):
        views = tuple(_view(name, study, place, index) for name, study in studies.items())
        x = pictures.png(first.x[place])
        exhibits.append(Exhibit(int(first.ids[index]), int(first.y[index]), x, views))
    return exhibits


def _view(name: str, study: Study, place: int, index: int) -> View:
    x, x_adv, label = study.x[place], study.x_adv[place], int(study.y[index])
    before, after = Answer.of(study.logits[index]), Answer.of(study.logits_adv[index])
    verdict = "wrong before" if before.label != label else "held" if after.label == label else "fooled"
    scale = pictures.enlarged(study.threat, x, x_adv)
    change = pictures.difference(x, x_adv, scale)
    return View(name, pictures.png(x_adv), change, scale, before, after, verdict)
