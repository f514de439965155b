"""TRADES (Zhang et al. 2019) and its union with JAC, the paper's TradesJac (App. D.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from atlas.attacks import FGSM, BatchNormMode, Model, TrainingAttack
from atlas.methods.method import Method, Terms, TrainingStep, local_terms
from atlas.objectives import Projections, kl


@dataclass(frozen=True)
class TradesJac(Method):
    """CE(x) + alpha ||J(x)||_F^2 + beta KL(p(x) || p(x')).

    The accuracy on training adversaries is taken from f(x'), which the KL term needs anyway.
    """

    alpha: float = 2e-4
    beta: float = 0.5
    attack: TrainingAttack = FGSM()
    projections: Projections = 1
    objective: ClassVar[str] = "kl"

    @property
    def weights(self) -> Mapping[str, float]:
        return {"jac": self.alpha, "kl": self.beta}

    def craft(
        self, model: Model, x: Tensor, y: Tensor, step: TrainingStep, mode: BatchNormMode = "eval"
    ) -> Tensor:
        """x_adv, which only the KL term needs: x itself where that term has no weight."""
        return super().craft(model, x, y, step, mode) if self.beta else x

    def terms(self, model: Model, x: Tensor, x_adv: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        losses, logits = local_terms(model, x, y, self.alpha, self.projections, step.rng)
        if not self.beta:
            return Terms(losses, logits)
        logits_adv = model(x_adv)
        return Terms(losses | {"kl": kl(logits, logits_adv)}, logits_adv)


@dataclass(frozen=True)
class Trades(TradesJac):
    """CE(x) + beta KL(p(x) || p(x'))."""

    alpha: float = field(default=0.0, init=False)
    beta: float = 1.0
    projections: Projections = field(default=1, init=False)
