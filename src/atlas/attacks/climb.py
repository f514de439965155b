"""Attacks that training can use: they climb an objective, and the end of the climb is x_adv."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor

from atlas.attacks.attack import Attack
from atlas.attacks.frozen import BatchNormMode, Model, frozen
from atlas.attacks.inputs import checked_inputs, explained
from atlas.attacks.state import Fresh, S
from atlas.rng import Rng, streams
from atlas.threat import Threat


class Climb(Attack[S]):
    """Base of the attacks that a method may train on."""

    restarts: int
    expected: ClassVar[str] = "an attack to train on: FGSM() or PGD(steps=10)"

    def attempts(self, num_classes: int) -> int:
        return self.restarts

    @abstractmethod
    def toward(self, objective: str) -> Self:
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
        fresh = Fresh(x, y, rng.fold("restart", restart), torch.full_like(y, restart))
        state = self.start(model, fresh, threat)
        for _ in range(self.steps):
            state = self.advance(model, state, threat).state
        return state
