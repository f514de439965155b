"""Black box by transfer: adversaries made on other models, tried on this one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from atlas.attacks.attack import Attack, Model, NewAttempts, Step
from atlas.attacks.gradients import NotFinite
from atlas.attacks.model_variants import frozen
from atlas.attacks.pgd import PGD, ClimbState
from atlas.errors import NumericError, UsageError
from atlas.threat import Threat


@dataclass(frozen=True)
class TransferState(ClimbState):
    """Lanes of a climb on a surrogate."""

    surrogate: Tensor = field(kw_only=True)  # which of the surrogates, int64 [B]


@dataclass(frozen=True)
class Transfer(Attack[TransferState]):
    """`attack` climbs the loss of a surrogate, and the target is asked once, where the climb ends (App. B).

    Attempts go to the surrogates in turn, so one for each with an attack of one restart; an example is fooled
    if any of them ends in an error of the target. The iterates on the way are not shown to the target: with
    1000 looks and leave to stop at the first error this would be a query attack with the surrogate as its
    guide, stronger than the paper's, whose adversary hands in one image. So the steps' own answers claim
    nothing, and the verdict is the engine's last look.

    Surrogates are modules or functions from images to logits. A module is frozen during each step and is
    as it was after it. Because they are objects, no table of a configuration names this attack.
    """

    surrogates: tuple[Model, ...]
    attack: PGD = PGD(steps=1000, step_size=0.01)
    white_box: ClassVar[bool] = False
    forwards: ClassVar[int] = 0

    def __post_init__(self) -> None:
        given: object = self.surrogates
        if not isinstance(given, tuple) or not given or not all(map(callable, given)):
            raise UsageError(
                "surrogates must be a tuple of models, at least one, such as (surrogate,), got a "
                f"{type(given).__name__}"
            )
        super().__post_init__()

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.attack.steps

    def reach(self, threat: Threat) -> float:
        return self.attack.reach(threat)

    def attempts(self, num_classes: int) -> int:
        return len(self.surrogates) * self.attack.attempts(num_classes)

    def start(self, model: Model, fresh: NewAttempts, threat: Threat) -> TransferState:
        restart, which = fresh.attempt // len(self.surrogates), fresh.attempt % len(self.surrogates)
        # The logits at hand are the target's, which the climb is not to see.
        fresh = replace(fresh, attempt=restart, logits=None)
        climb = self.attack.start(self._surrogate(which), fresh, threat)
        return TransferState(**climb.tensors(), surrogate=which)

    def advance(self, model: Model, state: TransferState, threat: Threat) -> Step[TransferState]:
        try:
            climb = self.attack.advance(self._surrogate(state.surrogate), state, threat)
        except NotFinite as error:
            bad = sorted(set(state.surrogate[error.lanes].tolist()))
            raise NumericError(
                f"surrogates {bad} (counted from 0) give gradients or logits that are not finite, so nothing "
                "can be crafted on them: leave them out"
            ) from error
        claims_nothing = torch.zeros_like(climb.logits).scatter_(1, state.y[:, None], 1)
        return Step(replace(state, **climb.state.tensors()), climb.x_tried, claims_nothing)

    def done(self, state: TransferState) -> Tensor:
        return self.attack.done(state)

    def _surrogate(self, which: Tensor) -> Model:
        """One model for lanes of several surrogates: each lane asks its own."""

        def logits(x: Tensor) -> Tensor:
            parts, lanes = [], []
            for number in sorted(set(which.tolist())):
                own = (which == number).nonzero()[:, 0]
                with frozen(self.surrogates[number]):
                    parts.append(self.surrogates[number](x.index_select(0, own) if len(own) < len(x) else x))
                lanes.append(own)
            return torch.cat(parts).index_select(0, torch.cat(lanes).argsort()) if parts[1:] else parts[0]

        return logits
