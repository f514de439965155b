"""TRADES (Zhang et al. 2019) and its union with JAC, the paper's TradesJac (App. D.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from atlas.attacks import FGSM, BatchNormMode, Model, TrainingAttack
from atlas.methods.method import LocalMethod, Method, Terms, TrainingStep, cross_entropy_at
from atlas.objectives import kl


@dataclass(frozen=True)
class Trades(Method):
    """CE(x) + beta KL(p(x) || p(x')).

    The accuracy on training adversaries is taken from f(x'), which the KL term needs anyway.
    """

    beta: float = 1.0
    attack: TrainingAttack = FGSM()
    objective: ClassVar[str] = "kl"

    @property
    def weights(self) -> Mapping[str, float]:
        return {"kl": self.beta}

    def craft(
        self, model: Model, x: Tensor, y: Tensor, step: TrainingStep, mode: BatchNormMode = "eval"
    ) -> Tensor:
        """x_adv, which only the KL term needs: x itself where that term has no weight."""
        return super().craft(model, x, y, step, mode) if self.beta else x

    def terms(self, model: Model, x: Tensor, x_adv: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        losses, logits = self.terms_at(model, x, y, step)
        if not self.beta:
            return Terms(losses, logits)
        logits_adv = model(x_adv)
        return Terms(losses | {"kl": kl(logits, logits_adv)}, logits_adv)

    def terms_at(self, model: Model, x: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        """The terms of the clean images alone."""
        return cross_entropy_at(model, x, y)


@dataclass(frozen=True, kw_only=True)
class TradesJac(LocalMethod, Trades):
    """CE(x) + alpha ||J(x)||_F^2 + beta KL(p(x) || p(x'))."""

    alpha: float = 2e-4
    beta: float = 0.5
    attack: TrainingAttack = FGSM()

    @property
    def weights(self) -> Mapping[str, float]:
        return {"jac": self.alpha, "kl": self.beta}

    def terms_at(self, model: Model, x: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        return self.local_terms(model, x, y, step)
