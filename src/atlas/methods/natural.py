"""Training on clean images."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from atlas.attacks import Model, TrainingAttack
from atlas.methods.method import Method, Terms, TrainingStep
from atlas.objectives import cross_entropy


@dataclass(frozen=True)
class Natural(Method):
    """CE(x)."""

    attack: TrainingAttack | None = field(default=None, init=False)

    def terms(self, model: Model, x: Tensor, x_adv: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        logits = model(x)
        return Terms({"ce": cross_entropy(logits, y)}, logits)
