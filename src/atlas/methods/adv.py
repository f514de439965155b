"""Adversarial training (Madry et al. 2018); with FGSM, the fast form of Wong et al. 2020."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from atlas.attacks import FGSM, Model, TrainingAttack
from atlas.methods.method import Method, Terms, TrainingStep
from atlas.objectives import cross_entropy


@dataclass(frozen=True)
class Adv(Method):
    """CE(x')."""

    attack: TrainingAttack = FGSM()

    def terms(self, model: Model, x: Tensor, x_adv: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        logits_adv = model(x_adv)
        return Terms({"ce": cross_entropy(logits_adv, y)}, logits_adv)
