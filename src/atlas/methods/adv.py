"""Training on clean images, and adversarial training (Madry et al. 2018; with FGSM, Wong et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from atlas.attacks import FGSM, Model, TrainingAttack
from atlas.methods.method import Method, Terms, TrainingStep, cross_entropy_at


@dataclass(frozen=True)
class Natural(Method):
    """CE(x)."""

    attack: TrainingAttack | None = field(default=None, init=False)

    def terms(self, model: Model, x: Tensor, x_adv: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        return cross_entropy_at(model, x, y)


@dataclass(frozen=True)
class Adv(Method):
    """CE(x')."""

    attack: TrainingAttack = FGSM()

    def terms(self, model: Model, x: Tensor, x_adv: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        return cross_entropy_at(model, x_adv, y)
