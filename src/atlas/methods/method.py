"""What a training method is: its weights, the attack that it trains on, and the terms of its loss.

A method never steps an optimiser, changes the model's mode or picks eps. To add one, write a file beside
this one and a line in the registry (`atlas.methods.METHODS`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from atlas.attacks import BatchNormMode, Model, TrainingAttack
from atlas.attacks.inputs import checked_inputs, explained
from atlas.config import check_counts, check_fields, number, omit_default_from_hash
from atlas.errors import UsageError
from atlas.objectives import Projections, cross_entropy, logits_and_squared_jacobian, squared_secant
from atlas.rng import Rng, streams
from atlas.threat import Threat

JacobianEstimate = Literal["projection", "secant"]

SHORTEST = 1e-3
"""Of the secant: below it, rounding in float32 is not small beside what f changes by."""


@dataclass(frozen=True)
class TrainingStep:
    """What a method is told of the step that its loss is for."""

    threat: Threat  #: with the eps of this step: it may grow during training
    rng: Rng
    number: int = 0  #: steps before this one
    progress: float = 0.0  #: the part of training that is done, in [0, 1]

    def fold(self, word: str) -> TrainingStep:
        """The same step with independent random streams."""
        return replace(self, rng=self.rng.fold(word))


class Terms(NamedTuple):
    """A method's loss on a batch, before it is weighed."""

    losses: dict[str, Tensor]  #: per-example terms [B] by name; "ce" first
    logits: Tensor  #: f on the images that are trained on (x_adv, where there is one), [B, C]


def cross_entropy_at(model: Model, x: Tensor, y: Tensor) -> Terms:
    """CE(x) alone."""
    logits = model(x)
    return Terms({"ce": cross_entropy(logits, y)}, logits)


class Method(ABC):
    """Base of all methods. Subclasses are frozen dataclasses."""

    attack: TrainingAttack | None  #: how x_adv is made; None where the method trains on x alone
    objective: ClassVar[str] = "ce"  #: what the method's attack climbs unless it is told otherwise

    def __post_init__(self) -> None:
        check_fields(self)
        for name, weight in self.weights.items():
            if not 0 <= weight < float("inf"):
                raise UsageError(
                    f"{type(self).__name__}: the weight of {name} must be >= 0 and finite, got {weight}"
                )

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


@dataclass(frozen=True, kw_only=True)
class LocalMethod(Method):
    """Base of the methods with a term alpha ||J||_F^2.

    Args:
        projections: directions in which J is projected per image, or "exact".
        jacobian: "projection" for the paper's estimate, by a second derivative; "secant" for
            ||f(x + h u) - f(x)||^2 / h^2 with u ~ N(0, I), which needs none and is cheaper.
        h: of the secant, in units of eps (under L2, of eps spread over all pixels).
        jacobian_every: the term is computed in every k-th step only, k times as heavy.
    """

    alpha: float
    projections: Projections = 1
    jacobian: JacobianEstimate = omit_default_from_hash("projection")
    h: float = omit_default_from_hash(1 / 6)
    jacobian_every: int = omit_default_from_hash(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(jacobian_every=self.jacobian_every)
        if self.projections != "exact":
            check_counts(projections=self.projections)
        if not 0 < self.h < float("inf"):
            raise UsageError(f"h must be > 0 and finite, got {self.h}")

    def local_terms(self, model: Model, x: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        """Eq. (6) at the centre x: CE(x) and ||J(x)||_F^2."""
        k = self.jacobian_every
        if not self.alpha or step.number % k:
            return cross_entropy_at(model, x, y)
        if self.jacobian == "projection":
            logits, jac = logits_and_squared_jacobian(model, x, step.rng, self.projections)
        else:
            h = max(self.h * step.threat.per_pixel(x), SHORTEST)
            with torch.autocast(x.device.type, enabled=False):
                logits = model(x)
                jac = squared_secant(model, logits, x, step.rng, h)
        return Terms({"ce": cross_entropy(logits, y), "jac": k * jac}, logits)
