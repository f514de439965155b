"""The gallery: what an attack does to images, and what the models say before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from atlas.report import pictures
from atlas.report.study import Study


@dataclass(frozen=True)
class Answer:
    """What a model says of an image, and how sure it is."""

    name: str
    confidence: float

    @classmethod
    def of(cls, study: Study, logits: Tensor) -> Answer:
        chances = logits.double().softmax(0)
        return cls(study.named(int(chances.argmax())), float(chances.max()))

    def __str__(self) -> str:
        return f"{self.name} ({self.confidence:.0%})"


@dataclass(frozen=True)
class View:
    """One model's view of one image."""

    model: str
    x_adv: str
    """Nothing, like `change`, where the model was wrong before: there was nothing to attack."""
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
    name: str
    """Of its class."""
    x: str
    views: tuple[View, ...]


def gallery(studies: Mapping[str, Study]) -> list[Exhibit]:
    """Of studies of the same images: the first of each class that a model gets right, else its first."""
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
            image, name = pictures.png(study.x[place]), study.named(label)
            exhibits[label] = Exhibit(int(study.ids[index]), name, image, views)
    return [exhibits[label] for label in sorted(exhibits)]


def scale_of_all(exhibits: Sequence[Exhibit]) -> float | None:
    """By how much perturbations are enlarged, where that is one number."""
    scales = {view.scale for exhibit in exhibits for view in exhibit.views if view.change}
    return scales.pop() if len(scales) == 1 else None


def _right(study: Study, index: int) -> bool:
    return bool(study.logits[index].argmax() == study.y[index])


def _view(name: str, study: Study, index: int) -> View:
    before, after = Answer.of(study, study.logits[index]), Answer.of(study, study.logits_adv[index])
    if not _right(study, index):  # so that its study need not have kept the image
        return View(name, "", "", 1.0, before, after, "wrong before")
    place = study.shown.tolist().index(index)
    x, x_adv = study.x[place], study.x_adv[place]
    scale = pictures.enlarged(study.threat, x, x_adv)
    verdict = "held" if study.stands[index] else "fooled"
    return View(
        name, pictures.png(x_adv), pictures.difference(x, x_adv, scale), scale, before, after, verdict
    )
