"""What a training method is: its weights, the attack that it trains on, and the terms of its loss.

A method never steps an optimiser, changes the model's mode or picks eps. To add one, write a file beside
this one and a line in the registry (`atlas.methods.METHODS`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from torch import Tensor

from atlas.attacks import BatchNormMode, Model, TrainingAttack
from atlas.attacks.inputs import checked_inputs, explained
from atlas.config import check_fields, number
from atlas.errors import UsageError
from atlas.objectives import Projections, check_projections, cross_entropy, logits_and_squared_jacobian
from atlas.rng import Rng, streams
from atlas.threat import Threat


@dataclass(frozen=True)
class TrainingStep:
    """What a method is told of the step that its loss is for."""

    threat: Threat
    """With the eps of this step: it may grow during training."""
    rng: Rng
    number: int = 0
    """Steps before this one."""
    progress: float = 0.0
    """The part of training that is done, in [0, 1]."""

    def fold(self, word: str) -> TrainingStep:
        """The same step with independent random streams."""
        return replace(self, rng=self.rng.fold(word))


class Terms(NamedTuple):
    """A method's loss on a batch, before it is weighed."""

    losses: dict[str, Tensor]
    """Per-example terms [B] by name; "ce" first."""
    logits: Tensor
    """f on the images that are trained on (x_adv, where there is one), [B, C]."""


def local_terms(
    model: Model, x: Tensor, y: Tensor, alpha: float, projections: Projections, rng: Rng
) -> Terms:
    """Eq. (6) at the centre x: CE(x) and, unless alpha is 0, ||J(x)||_F^2, from one forward pass."""
    if not alpha:
        logits = model(x)
        return Terms({"ce": cross_entropy(logits, y)}, logits)
    logits, jac = logits_and_squared_jacobian(model, x, rng, projections)
    return Terms({"ce": cross_entropy(logits, y), "jac": jac}, logits)


class Method(ABC):
    """Base of all methods. Subclasses are frozen dataclasses."""

    attack: TrainingAttack | None
    """How x_adv is made; None where the method trains on x alone."""
    objective: ClassVar[str] = "ce"
    """What the method's attack climbs unless it is told otherwise."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, weight in self.weights.items():
            if not 0 <= weight < float("inf"):
                raise UsageError(
                    f"{type(self).__name__}: the weight of {name} must be >= 0 and finite, got {weight}"
                )
        check_projections(getattr(self, "projections", 1))

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each term but "ce", whose weight is 1."""
        return {}

    @abstractmethod
    def terms(self, model: Model, x: Tensor, x_adv: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        """The terms of the loss. A term whose weight is 0 is not computed."""

    def craft(
        self, model: Model, x: Tensor, y: Tensor, step: TrainingStep, mode: BatchNormMode = "eval"
    ) -> Tensor:
        """The images to train on: x_adv, or x itself where the method has no attack."""
        if self.attack is None:
            return x
        attack = self.attack.with_default_objective(self.objective)
        return attack.craft(model, x, y, step.threat, step.rng, mode)

    def weigh(self, losses: Mapping[str, Tensor], ramp: float = 1.0) -> Tensor:
        """The mean over the batch of CE + ramp * (the other terms by their weights), a scalar.

        `ramp` is eps_now / eps_final: alpha and beta grow with eps (App. A.3).
        """
        total = losses["ce"].mean()
        for name, weight in self.weights.items():
            if name in losses:
                total = total + ramp * weight * losses[name].mean()
        return total

    def loss(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        *,
        threat: Threat,
        rng: Rng | None = None,
        ramp: float = 1.0,
        mode: BatchNormMode = "eval",
    ) -> Tensor:
        """The whole loss of a batch, for any training loop: a scalar to call backward() on.

            loss = method.loss(model, x, y, threat=Linf(8 / 255))
            loss.backward()

        Args:
            model, x, y, threat, rng, mode: as for `Attack.perturb`, which makes the x_adv of the loss.
            ramp: eps_now / eps_final while eps grows, by which all terms but the cross-entropy are weighed.

        Returns:
            The mean over the batch, a scalar.

        Raises:
            UsageError: for a threat or `rng` that does not fit, and inside `torch.inference_mode()`.
            DataError: for images or labels that do not fit.
        """
        x, y = checked_inputs(x, y, threat)
        rng, ramp = streams(rng, x), number(ramp, "ramp")
        if not ramp >= 0:
            raise UsageError(f"ramp must be >= 0, got {ramp}")
        step = TrainingStep(threat, rng)
        with explained(model, x, y):
            x_adv = self.craft(model, x, y, step.fold("attack"), mode)
            return self.weigh(self.terms(model, x, x_adv, y, step.fold("terms")).losses, ramp)
