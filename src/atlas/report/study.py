"""What a page shows and no evaluation keeps: accuracy by radius and by steps, and answers under attack.

One cheap attack (Un-T, one start) on the first n test images, kept in the run's folder under the hash of all
that decides it, so that it is made once. It shows shapes and examples; the numbers to quote are those of
`atlas evaluate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from atlas.attacks.margin import Untargeted
from atlas.config import check_counts
from atlas.evaluation import Flag, Score
from atlas.threat import Threat

RADII = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
"""In units of the run's eps. Beyond it the accuracy has to fall to nothing, or the attack is blind."""
STEPS = (1, 2, 5, 10, 20, 50)
SHOWN = 10
"""Images in the gallery: of each class the first that is right, so that nobody picks them."""
FORM = 2
"""Counted up when what is kept changes."""


@dataclass(frozen=True)
class Settings:
    """What a reader can choose."""

    n: int = 200
    steps: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(n=self.n, steps=self.steps)

    @property
    def attack(self) -> Untargeted:
        return Untargeted(steps=self.steps, restarts=1)

    def table(self) -> dict[str, Any]:
        return {**asdict(self), "radii": RADII, "counts": STEPS, "shown": SHOWN, "form": FORM}


@dataclass(frozen=True, eq=False)
class Study:
    """Of N images; tensors on the CPU."""

    threat: Threat
    settings: Settings
    data: str
    data_hash: str
    ids: Tensor
    y: Tensor
    logits: Tensor
    """f(x), [N, C]."""
    logits_adv: Tensor
    """f(x') at the full radius, [N, C]; f(x) where x itself is wrong."""
    radius: Tensor
    """At which of RADII each image first falls, int64 [N]; -1 if wrong as it is, len(RADII) if never."""
    held: Tensor
    """Whether it stands after each of STEPS at the full radius, bool [len(STEPS), N]."""
    shown: Tensor
    """Which of the images are in the gallery, int64 [G]."""
    x: Tensor
    x_adv: Tensor
    """Those images, [G, C, H, W]."""
    flags: tuple[Flag, ...]
    class_names: tuple[str, ...] = ()

    def named(self, label: int) -> str:
        """What a class is called."""
        return self.class_names[label] if label < len(self.class_names) else str(label)

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Fatal flags, for which none of it must be shown as robustness."""
        return tuple(dict.fromkeys(flag.name for flag in self.flags if flag.fatal))

    @cached_property
    def by_radius(self) -> list[tuple[float, Score]]:
        """(eps, accuracy). An image that falls within some radius has fallen within every larger one."""
        scores = [self._score(self.radius > index) for index in range(-1, len(RADII))]
        return list(zip([0.0, *(wider(self.threat, r).eps for r in RADII)], scores, strict=True))

    @cached_property
    def by_steps(self) -> list[tuple[int, Score]]:
        return list(zip(STEPS, map(self._score, self.held), strict=True))

    @property
    def stands(self) -> Tensor:
        """Right at the image that the attack ended with at the full radius, bool [N]."""
        return self.logits_adv.argmax(1) == self.y

    def _score(self, right: Tensor) -> Score:
        return Score(int(right.sum()), self.n, self.reasons)


def wider(threat: Threat, share: float) -> Threat:
    """The threat with so many times its radius, as far as it can have that."""
    return threat.at(min(share * threat.eps, threat.largest_eps))


def grouped(studies: Mapping[str, Study]) -> list[dict[str, Study]]:
    """Studies of the same images under the same threat together."""
    groups: dict[tuple[object, ...], dict[str, Study]] = {}
    for name, each in studies.items():
        key = (each.data_hash, type(each.threat), each.threat.eps)
        groups.setdefault(key, {})[name] = each
    return list(groups.values())
