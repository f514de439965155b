"""The same training methods by others: the textbook's loop, and what other libraries have.

One file a library, one function a method: of a task it makes a step. A library is imported when its first
step is made, so that none of them has to be there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atlas.bench.peers import PACKAGES, versions
from atlas.bench.trainers import art, textbook, torchattacks
from atlas.bench.trainers.task import Task

__all__ = ["TRAINERS", "Task", "Trainer"]


@dataclass(frozen=True)
class Trainer:
    """Another implementation of a method."""

    name: str
    make: Callable[[Task], Callable[[], None]]
    """A step of a task, to be made again and again."""
    notes: tuple[str, str] = ("", "")
    """Where it differs: with an attack of one step, and of several."""

    @property
    def installed(self) -> bool:
        return self.name not in PACKAGES or versions()[PACKAGES[self.name]] is not None

    def note(self, steps: int) -> str:
        return self.notes[steps > 1]


TEXTBOOK = "textbook loop"
PLAIN = ("as written in a notebook, float32",) * 2

TRAINERS: dict[str, tuple[Trainer, ...]] = {
    "natural": (Trainer(TEXTBOOK, textbook.natural, PLAIN),),
    "jac": (Trainer(TEXTBOOK, textbook.jac, PLAIN),),
    "adv": (
        Trainer(TEXTBOOK, textbook.adv, PLAIN),
        Trainer("torchattacks", torchattacks.adv, ("FFGSM in that loop", "PGD in that loop")),
        Trainer(
            "ART",
            art.adv,
            ("FBF; in eval mode, gradients clipped", "MadryPGD; 2 more passes, 32 at a time"),
        ),
    ),
    "trades": (
        Trainer(TEXTBOOK, textbook.trades, PLAIN),
        Trainer(
            "torchattacks",
            torchattacks.trades,
            ("TPGD in that loop; starts near x", "TPGD in that loop"),
        ),
        Trainer("ART", art.trades, ("TRADES; attack climbs CE, 1 more pass",) * 2),
    ),
    "atlas": (
        Trainer(TEXTBOOK, textbook.atlas, PLAIN),
        Trainer(
            "torchattacks",
            torchattacks.atlas,
            ("FFGSM in that loop", "PGD in that loop"),
        ),
    ),
    "atlas_g": (Trainer(TEXTBOOK, textbook.atlas_g, PLAIN),),
}
"""By the name of the method. Who has no such method is left out."""
