"""ATLAS: adversarial training via local stability (the paper's method), its halves, and zero-step JAC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from atlas.attacks import FGSM, Model, TrainingAttack
from atlas.methods.method import JacobianEstimate, LocalMethod, Terms, TrainingStep
from atlas.objectives import Projections, kl


@dataclass(frozen=True)
class Jac(LocalMethod):
    """CE(x) + alpha ||J(x)||_F^2, at the clean image (Jakubovitz and Giryes 2018; Hoffman et al. 2019)."""

    alpha: float = 0.5
    attack: TrainingAttack | None = field(default=None, init=False)

    @property
    def weights(self) -> Mapping[str, float]:
        return {"jac": self.alpha}

    def terms(self, model: Model, x: Tensor, x_adv: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        return self.local_terms(model, x, y, step)


@dataclass(frozen=True)
class Atlas(LocalMethod):
    """Eq. (2) and (12): CE(x') + alpha ||J(x')||_F^2 + beta KL(p(x') || p(x)).

    The local part asks for a large robust ball around the adversary x'; the global part joins it to the
    ball around x. TRADES centres both on x and has the KL the other way round.
    """

    alpha: float
    beta: float
    attack: TrainingAttack = FGSM()

    @property
    def weights(self) -> Mapping[str, float]:
        return {"jac": self.alpha, "kl": self.beta}

    def terms(self, model: Model, x: Tensor, x_adv: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        losses, logits_adv = self.local_terms(model, x_adv, y, step)
        if self.beta:
            losses = losses | {"kl": kl(logits_adv, model(x))}
        return Terms(losses, logits_adv)


def atlas_l(
    alpha: float,
    attack: TrainingAttack = FGSM(),
    projections: Projections = 1,
    jacobian: JacobianEstimate = "projection",
    h: float = 1 / 6,
    jacobian_every: int = 1,
) -> Atlas:
    """Eq. (18), the local half: CE(x') + alpha ||J(x')||_F^2."""
    return Atlas(
        alpha, 0.0, attack, projections=projections, jacobian=jacobian, h=h, jacobian_every=jacobian_every
    )


def atlas_g(beta: float, attack: TrainingAttack = FGSM()) -> Atlas:
    """Eq. (19), the global half: CE(x') + beta KL(p(x') || p(x))."""
    return Atlas(0.0, beta, attack)
