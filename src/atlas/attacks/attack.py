"""What an attack is: a frozen value that starts lanes, advances them by one step and says which are done.

A lane is one attempt on one example, and every tensor of the state has the lane as its first axis, so the
same attack serves one batch (`attack(model, x, y, threat)`) and the lanes engine (`atlas.attacks.engine`).

    x_adv = PGD(steps=10).perturb(model, x, y, threat)     # for training: every step, on every image
    x_adv = PGD(steps=20)(model, x, y, threat)             # for evaluation: stops at the first success

To add an attack, write a file beside this one, a line in the registry and a row in the conformance table.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Generic, Self

import torch
from torch import Tensor

from atlas.attacks import engine
from atlas.attacks.engine import NewAttempts, S, Step
from atlas.attacks.inputs import checked_inputs, explained
from atlas.attacks.model_variants import BatchNormMode, Model, frozen
from atlas.config import check_counts, check_fields
from atlas.errors import UsageError
from atlas.rng import Rng, streams
from atlas.threat import Threat

COUNTS = ("steps", "restarts", "targets", "queries")
"""Fields that must be integers >= 1 in any attack that has them."""
LEAST_REACH = 0.5
"""Of eps. The paper's own PGD-20 on MNIST goes two thirds of it."""


class Attack(ABC, Generic[S]):
    """Base of all attacks. Subclasses are frozen dataclasses."""

    steps: int
    """After how many steps a lane is done."""
    expected: ClassVar[str] = "an attack, such as PGD(steps=20), or atlas.attacks.adapt(theirs)"
    """What an error asks for in the place of something else."""
    version: ClassVar[int] = 1
    """Raised with every change that may change a verdict: kept results of other versions are not reused."""
    white_box: ClassVar[bool] = True
    """Whether the attack needs gradients of the model."""
    threats: ClassVar[tuple[type[Threat], ...]] = (Threat,)
    """The threats under which it is defined."""
    needs_precision: ClassVar[bool] = False
    """Whether it lives on small differences, which a search in lower precision would round away."""
    counts_steps: ClassVar[bool] = True
    """Whether `steps` tells how long it searches, as the warnings use it."""
    forwards: ClassVar[int] = 1
    """Forward passes a step."""
    looks_at_last: ClassVar[bool] = True
    """Whether a lane that is done is due a last look at its `x_adv`, where no step has asked the model. Else
    the engine looks at the last point that was tried, moved into the ball, and this is no query."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_counts(**{name: value for name, value in vars(self).items() if name in COUNTS})

    def attempts(self, num_classes: int) -> int:
        """How many attempts are made on each example that is not fooled earlier."""
        targets = min(getattr(self, "targets", 1), num_classes - 1)
        return targets * getattr(self, "restarts", 1)

    @abstractmethod
    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> S:
        """New lanes at their starting points."""

    @abstractmethod
    def advance(self, model: Model, state: S, threat: Threat) -> Step[S]:
        """All lanes one step on."""

    def reach(self, threat: Threat) -> float:
        """How far its steps can carry a point in all, where that is known."""
        return math.inf

    def falls_short(self, threat: Threat) -> bool:
        """Whether most of the ball is out of its reach."""
        return self.reach(threat) < LEAST_REACH * threat.eps

    def done(self, state: S) -> Tensor:
        """Which lanes have come to their end, bool [B]."""
        return state.step >= self.steps

    def check(self, threat: Threat) -> None:
        """Refuse a threat for which the attack is not defined."""
        if not isinstance(threat, self.threats):
            name, norms = type(self).__name__, " or ".join(kind.__name__ for kind in self.threats)
            raise UsageError(f"{name} got {threat}; it is defined for {norms}: omit it, or choose that")

    def __call__(self, model: Model, x: Tensor, y: Tensor, threat: Threat, rng: Rng | None = None) -> Tensor:
        """Adversarial images for evaluation: the attack on an image **stops at its first success**.

        An image that is misclassified already comes back as it is, and a fooled one as it was when it first
        fooled the model; any other is where the last attempt ended. The model is as it was before. To train,
        use `perturb`: these images have a lower loss.

            x_adv = PGD(steps=20)(model, x, y, Linf(8 / 255))
            robust = (model(x_adv).argmax(1) == y).float().mean()

        Args:
            model: a module or function from images [B, C, H, W] in [0, 1] to logits [B, classes].
            x: the images, floating-point.
            y: their labels, integers [B].
            threat: `Linf(eps)` or `L2(eps)`, with eps in pixel units.
            rng: one random stream per image, such as `Rng.batch(len(x), seed=0, step=i)`. Without it a seed
                is drawn from torch's global generator, so that `torch.manual_seed` decides.

        Returns:
            x_adv, shaped like x, in the ball around x and in the pixel box.

        Raises:
            UsageError: for a threat or `rng` that does not fit, and inside `torch.inference_mode()`.
            DataError: for images or labels that do not fit.
        """
        x, y = checked_inputs(x, y, threat)
        with explained(model, x, y):
            return engine.run(self, model, x, y, threat, rng, batch_size=max(len(x), 1)).x_adv

    def perturb(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        rng: Rng | None = None,
        mode: BatchNormMode = "eval",
    ) -> Tensor:
        """Adversarial images for training: **every step is taken on every image**, misclassified or not.

        What comes back is the end of the climb, and of several restarts the end with the highest loss. Only
        the attacks that training can use have it: `FGSM` and `PGD`.

            x_adv = PGD(steps=10).perturb(model, x, y, Linf(8 / 255))
            loss = torch.nn.functional.cross_entropy(model(x_adv), y)

        Args:
            model, x, y, threat, rng: as for a call of the attack, see `__call__`.
            mode: "eval" for BatchNorm to use its running statistics while the attack runs, "train" for those
                of the batch. Afterwards the model's modes and statistics are as they were.

        Returns:
            x_adv, shaped like x, in the ball around x and in the pixel box.

        Raises:
            UsageError: for an attack that is not made for training, and as a call of the attack does.
            DataError: for images or labels that do not fit.
        """
        raise UsageError(
            f"{type(self).__name__} is for evaluation only: call it as attack(model, x, y, threat). "
            "To train, use FGSM() or PGD()"
        )


class TrainingAttack(Attack[S]):
    """Base of the attacks that a method may train on."""

    restarts: int
    expected: ClassVar[str] = "an attack to train on: FGSM() or PGD(steps=10)"

    @abstractmethod
    def with_default_objective(self, objective: str) -> Self:
        """This attack, climbing a method's objective unless it has one of its own."""

    @abstractmethod
    def loss(self, logits_adv: Tensor, state: S) -> Tensor:
        """What the attack climbs, [B]."""

    def perturb(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        threat: Threat,
        rng: Rng | None = None,
        mode: BatchNormMode = "eval",
    ) -> Tensor:
        x, y = checked_inputs(x, y, threat)
        with explained(model, x, y):
            return self.craft(model, x, y, threat, streams(rng, x), mode)

    def craft(
        self, model: Model, x: Tensor, y: Tensor, threat: Threat, rng: Rng, mode: BatchNormMode = "eval"
    ) -> Tensor:
        """`perturb` without its checks, for a training loop that has made them."""
        x = x.detach()
        if threat.eps == 0:
            return x
        with frozen(model, mode):
            ends = [self._climb(model, x, y, threat, rng, restart) for restart in range(self.restarts)]
            if len(ends) == 1:
                return ends[0].x_adv
            with torch.no_grad():
                losses = torch.stack([self.loss(model(end.x_adv), end) for end in ends])
            points = torch.stack([end.x_adv for end in ends])
            return points[losses.argmax(0), torch.arange(len(x), device=x.device)]

    def _climb(self, model: Model, x: Tensor, y: Tensor, threat: Threat, rng: Rng, restart: int) -> S:
        fresh = NewAttempts(x, y, rng.fold("restart", restart), torch.full_like(y, restart))
        state = self.start(model, fresh, threat)
        for _ in range(self.steps):
            state = self.advance(model, state, threat).state
        return state
