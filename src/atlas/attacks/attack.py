"""What an attack is: a frozen value that starts lanes, advances them by one step and says which are done.

A lane is one attempt on one example, and every tensor of the state has the lane as its first axis, so the
same attack serves one batch (`attack(model, x, y, threat)`) and the lanes engine (`atlas.attacks.engine`).
To add an attack, write a file beside this one, a line in the registry and a row in the conformance table.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, Self

import torch
from torch import Tensor
from typing_extensions import TypeVar

from atlas.attacks.inputs import checked_inputs, explained
from atlas.attacks.model_variants import BatchNormMode, frozen
from atlas.attacks.model_variants import Model as Model
from atlas.config import check_counts, check_fields
from atlas.errors import UsageError
from atlas.rng import Rng, streams
from atlas.threat import Threat

COUNTS = ("steps", "restarts", "targets", "queries")  # integers >= 1 in any attack that has them
LEAST_REACH = 0.5  # of eps; the paper's own PGD-20 on MNIST goes two thirds of it


@dataclass(frozen=True)
class NewAttempts:
    """Attempts that are about to begin, one per lane."""

    x: Tensor  #: the clean images [B, ...]
    y: Tensor  #: their labels, int64 [B]
    rng: Rng  #: a stream for each (example, attempt)
    attempt: Tensor  #: which attempt on its example, from 0, int64 [B]: a restart, a target, or both
    logits: Tensor | None = None  #: f(x) [B, C], where it is at hand

    def clean_logits(self, model: Model) -> Tensor:
        """f(x), computed only where it is not at hand."""
        if self.logits is not None:
            return self.logits
        with torch.no_grad():
            return model(self.x)

    def targets(self, model: Model, most: int | None = None) -> tuple[Tensor, Tensor]:
        """The class that each attempt is to reach, and how many rounds through the classes came before.

        A round goes through the wrong classes, at most so many, by their clean logits, the largest first.
        """
        wrong = self.clean_logits(model).scatter(1, self.y[:, None], -torch.inf)
        count = min(wrong.shape[1] - 1, most or wrong.shape[1])
        ranked = wrong.topk(count).indices
        return ranked.gather(1, (self.attempt % count)[:, None])[:, 0], self.attempt // count

    def no_steps(self) -> Tensor:
        """The step counter of a new state, int64 [B]."""
        return torch.zeros_like(self.y)


@dataclass(frozen=True)
class State:
    """Lanes under attack. An attack that has to remember more adds fields in a subclass."""

    x: Tensor  #: the clean images [B, ...]
    y: Tensor  #: their labels, int64 [B]
    x_adv: Tensor  #: where the attack is now
    step: Tensor  #: steps taken so far, int64 [B]

    def __len__(self) -> int:
        return len(self.x)

    def tensors(self) -> dict[str, Tensor]:
        """The state by name; a field that is None is left out."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def select(self, which: Tensor) -> Self:
        """The lanes of these indices."""
        # Several times faster than value[which].
        return replace(self, **{k: v.index_select(0, which) for k, v in self.tensors().items()})

    def join(self, other: Self) -> Self:
        """These lanes, then the other's."""
        more = other.tensors()
        return replace(self, **{k: torch.cat([v, more[k]]) for k, v in self.tensors().items()})


S = TypeVar("S", bound=State, default=Any)


class Step(NamedTuple, Generic[S]):
    """What one step of all lanes gave."""

    state: S  #: the lanes, a step on
    x_tried: Tensor  #: the points at which the model was queried
    logits: Tensor  #: its answers there, [B, C]


class Attack(ABC, Generic[S]):
    """Base of all attacks. Subclasses are frozen dataclasses."""

    steps: int  #: after which a lane is done
    expected: ClassVar[str] = "an attack, such as PGD(steps=20), or atlas.attacks.adapt(theirs)"
    """What an error asks for in the place of something else."""
    version: ClassVar[int] = 1
    """Raised with every change that may change a verdict: kept results of other versions are not reused."""
    white_box: ClassVar[bool] = True  #: whether it needs gradients of the model
    threats: ClassVar[tuple[type[Threat], ...]] = (Threat,)  #: under which it is defined
    needs_precision: ClassVar[bool] = False  #: whether a search in lower precision would round away its steps
    counts_steps: ClassVar[bool] = True  #: whether `steps` says how long it searches, as the warnings use it
    forwards: ClassVar[int] = 1  #: passes per step
    looks_at_last: ClassVar[bool] = True
    """Whether a lane that is done is due a query at its `x_adv`, where no step has queried the model. Else
    the engine looks at the last point that was tried, moved into the ball, and this does not count."""

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

    def done(self, state: S) -> Tensor:
        """Which lanes have come to their end, bool [B]."""
        return state.step >= self.steps

    def reach(self, threat: Threat) -> float:
        """How far its steps can carry a point in all, where that is known."""
        return math.inf

    def falls_short(self, threat: Threat) -> bool:
        """Whether most of the ball is out of its reach."""
        return self.reach(threat) < LEAST_REACH * threat.eps

    def check(self, threat: Threat) -> None:
        """Refuse a threat for which the attack is not defined."""
        if not isinstance(threat, self.threats):
            name, norms = type(self).__name__, " or ".join(kind.__name__ for kind in self.threats)
            raise UsageError(f"{name} got {threat}; it is defined for {norms}: omit it, or choose that")

    def __call__(self, model: Model, x: Tensor, y: Tensor, threat: Threat, rng: Rng | None = None) -> Tensor:
        """Adversarial images for evaluation: the attack on an image **stops at its first success**.

        An image that is misclassified already comes back as it is, and a fooled one as it was when it first
        fooled the model; any other is where the last attempt ended. The model is as it was before. To train,
        use `perturb` of `FGSM` or `PGD`: these images have a lower loss.

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
        from atlas.attacks.engine import run  # not above: the engine runs attacks, and imports this

        x, y = checked_inputs(x, y, threat)
        with explained(model, x, y):
            return run(self, model, x, y, threat, rng, batch_size=max(len(x), 1)).x_adv


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
        """Adversarial images for training: **every step is taken on every image**, misclassified or not.

        What comes back is the end of the climb, and of several restarts the end with the highest loss.

            x_adv = PGD(steps=10).perturb(model, x, y, Linf(8 / 255))
            loss = torch.nn.functional.cross_entropy(model(x_adv), y)

        Args:
            model, x, y, threat, rng: as for a call of the attack, see `__call__`.
            mode: "eval" for BatchNorm to use its running statistics while the attack runs, "train" for those
                of the batch. Afterwards the model's modes and statistics are as they were.

        Returns, Raises: as a call of the attack does.
        """
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
        ends = []
        with frozen(model, mode):
            for restart in range(self.restarts):
                fresh = NewAttempts(x, y, rng.fold("restart", restart), torch.full_like(y, restart))
                state = self.start(model, fresh, threat)
                for _ in range(self.steps):
                    state = self.advance(model, state, threat).state
                ends.append(state)
            if len(ends) == 1:
                return ends[0].x_adv
            with torch.no_grad():
                losses = torch.stack([self.loss(model(end.x_adv), end) for end in ends])
        points = torch.stack([end.x_adv for end in ends])
        return points[losses.argmax(0), torch.arange(len(x), device=x.device)]
