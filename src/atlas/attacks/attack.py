"""What an attack is: a frozen value that starts lanes and advances them by one step.

A lane is one attempt on one example, and every tensor of the state has the lane as its first axis, so
the same attack serves a training batch (`craft`) and the lanes engine (`atlas.attacks.lanes`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from atlas.attacks import lanes
from atlas.attacks.frozen import BatchNormMode, Model, frozen
from atlas.rng import Rng
from atlas.threat import Threat


@dataclass(frozen=True)
class State:
    """Lanes under attack."""

    x: Tensor
    """The clean images [B, ...]."""
    y: Tensor
    """Their labels, int64 [B]."""
    x_adv: Tensor
    """Where the attack is now."""
    step: Tensor
    """Steps taken so far, int64 [B]."""
    logits: Tensor | None = None
    """f(x), where the objective needs it."""

    def __len__(self) -> int:
        return len(self.x)

    def select(self, which: Tensor) -> State:
        """The lanes of this index or mask."""
        chosen = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v[which] for k, v in chosen.items() if v is not None})

    def join(self, other: State) -> State:
        """These lanes, then the other's."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return replace(self, **{k: torch.cat(pair) for k, pair in pairs.items() if pair[0] is not None})


class Attack(ABC):
    """Base of all attacks. Subclasses are frozen dataclasses."""

    steps: int
    restarts: int

    @abstractmethod
    def start(self, model: Model, x: Tensor, y: Tensor, threat: Threat, rng: Rng) -> State:
        """New lanes at their starting points."""

    @abstractmethod
    def advance(self, model: Model, state: State, threat: Threat) -> tuple[State, Tensor]:
        """All lanes one step on, and the logits [B, C] at the points that they left."""

    def toward(self, objective: str) -> Attack:
        """This attack, climbing a method's objective unless it has one of its own."""
        return self

    @abstractmethod
    def loss(self, logits_adv: Tensor, state: State) -> Tensor:
        """What the attack climbs, [B]."""

    def craft(
        self, model: Model, x: Tensor, y: Tensor, threat: Threat, rng: Rng, mode: BatchNormMode = "eval"
    ) -> Tensor:
        """x_adv to train on: the end of the climb, and of several restarts the one with the highest loss."""
        if threat.eps == 0:
            return x
        with frozen(model, mode):
            ends = [self._climb(model, x, y, threat, rng.fold("restart", k)) for k in range(self.restarts)]
            if len(ends) == 1:
                return ends[0].x_adv
            with torch.no_grad():
                losses = torch.stack([self.loss(model(end.x_adv), end) for end in ends])
            points = torch.stack([end.x_adv for end in ends])
            return points[losses.argmax(0), torch.arange(len(x), device=x.device)]

    def _climb(self, model: Model, x: Tensor, y: Tensor, threat: Threat, rng: Rng) -> State:
        state = self.start(model, x, y, threat, rng)
        for _ in range(self.steps):
            state, _ = self.advance(model, state, threat)
        return state

    def __call__(self, model: Model, x: Tensor, y: Tensor, threat: Threat, rng: Rng | None = None) -> Tensor:
        """The strongest x_adv found: a misclassified iterate of any restart, else the last iterate."""
        rng = rng or Rng.batch(len(x), device=x.device)
        return lanes.run(self, model, x, y, threat, rng, batch_size=max(len(x), 1)).x_adv
