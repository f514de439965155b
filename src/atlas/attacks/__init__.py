"""Attacks, as values: ``PGD(steps=20, step_size=0.01)(model, x, y, Linf(0.3))`` gives x_adv."""

from atlas.attacks.attack import Attack, State
from atlas.attacks.frozen import BatchNormMode, Model, frozen
from atlas.attacks.lanes import Outcome, run
from atlas.attacks.pgd import FGSM, PGD

ATTACKS: dict[str, type[Attack]] = {"fgsm": FGSM, "pgd": PGD}
"""Every attack by its name in a configuration."""

__all__ = [
    "ATTACKS",
    "FGSM",
    "PGD",
    "Attack",
    "BatchNormMode",
    "Model",
    "Outcome",
    "State",
    "frozen",
    "run",
]
