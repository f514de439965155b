"""Attacks, as values.

x_adv = PGD(steps=10).perturb(model, x, y, Linf(0.3))   # for training: every step, on every image
x_adv = PGD(steps=20)(model, x, y, Linf(0.3))           # for evaluation: stops at the first success
"""

from atlas.attacks.adapters import Adapted, adapt
from atlas.attacks.apgd import APGD, TargetedAPGD
from atlas.attacks.attack import Attack, NewAttempts, State, Step, TrainingAttack
from atlas.attacks.attack_log import Outcome
from atlas.attacks.engine import run
from atlas.attacks.fab import TargetedFAB
from atlas.attacks.gradients import NotFinite
from atlas.attacks.margin import MultiTargeted, TargetedShrink, Untargeted
from atlas.attacks.model_variants import BatchNormMode, Model, frozen
from atlas.attacks.pgd import FGSM, PGD
from atlas.attacks.rays import RayS, distance_curve
from atlas.attacks.square import Square
from atlas.attacks.transfer import Transfer

TRAINING_ATTACKS: dict[str, type[TrainingAttack]] = {"fgsm": FGSM, "pgd": PGD}
"""The attacks that training can use, by their names in a configuration."""
ATTACKS: dict[str, type[Attack]] = {
    **TRAINING_ATTACKS,
    "apgd": APGD,
    "apgd-t": TargetedAPGD,
    "fab-t": TargetedFAB,
    "square": Square,
    "un-t": Untargeted,
    "multi-t": MultiTargeted,
    "rays": RayS,
    "shrink-t": TargetedShrink,
}
"""Every attack by its name in a configuration; `Transfer` is made of models, which have none."""

__all__ = ["ATTACKS", "TRAINING_ATTACKS", "Attack", "NewAttempts", "State", "Step", "TrainingAttack"]
__all__ += ["APGD", "FGSM", "PGD", "MultiTargeted", "RayS", "Square", "TargetedAPGD", "TargetedFAB"]
__all__ += ["Adapted", "TargetedShrink", "Transfer", "Untargeted", "adapt", "distance_curve"]
__all__ += ["BatchNormMode", "Model", "NotFinite", "Outcome", "frozen", "run"]
