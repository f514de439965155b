"""Attacks, as values: ``PGD(steps=20, step_size=0.01)(model, x, y, Linf(0.3))`` gives x_adv."""

from atlas.attacks.attack import Attack
from atlas.attacks.climb import Climb
from atlas.attacks.finite import NotFinite
from atlas.attacks.frozen import BatchNormMode, Model, frozen
from atlas.attacks.lanes import run
from atlas.attacks.ledger import Outcome
from atlas.attacks.pgd import FGSM, PGD
from atlas.attacks.state import Fresh, State, Step

CLIMBS: dict[str, type[Climb]] = {"fgsm": FGSM, "pgd": PGD}
"""The attacks that training can use, by their names in a configuration."""
ATTACKS: dict[str, type[Attack]] = {**CLIMBS}
"""Every attack by its name in a configuration."""

__all__ = [
    "ATTACKS",
    "CLIMBS",
    "FGSM",
    "PGD",
    "Attack",
    "BatchNormMode",
    "Climb",
    "Fresh",
    "Model",
    "NotFinite",
    "Outcome",
    "State",
    "Step",
    "frozen",
    "run",
]
