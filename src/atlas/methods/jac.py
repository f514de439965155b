"""Zero-step JAC: a Jacobian penalty at the clean image (Jakubovitz and Giryes; Hoffman et al.)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from atlas.attacks import Model, TrainingAttack
from atlas.methods.method import LocalMethod, Terms, TrainingStep


@dataclass(frozen=True)
class Jac(LocalMethod):
    """CE(x) + alpha ||J(x)||_F^2."""

    alpha: float = 0.5
    attack: TrainingAttack | None = field(default=None, init=False)

    @property
    def weights(self) -> Mapping[str, float]:
        return {"jac": self.alpha}

    def terms(self, model: Model, x: Tensor, x_adv: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        return self.local_terms(model, x, y, step)
