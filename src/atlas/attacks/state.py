"""Lanes as tensors: what an attempt begins with, what it remembers, what a step of it gave."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NamedTuple, Self

import torch
from torch import Tensor
from typing_extensions import TypeVar

from atlas.attacks.frozen import Model
from atlas.rng import Rng


@dataclass(frozen=True)
class Fresh:
    """Attempts that are about to begin, one a lane."""

    x: Tensor
    """The clean images [B, ...]."""
    y: Tensor
    """Their labels, int64 [B]."""
    rng: Rng
    """A stream for each (example, attempt)."""
    attempt: Tensor
    """Which attempt on its example each is, from 0, int64 [B]: a restart, a target, or both."""
    logits: Tensor | None = None
    """f(x) [B, C], where it is at hand."""

    def clean_logits(self, model: Model) -> Tensor:
        """f(x), asked of the model only where it is not at hand."""
        if self.logits is not None:
            return self.logits
        with torch.no_grad():
            return model(self.x)

    def likeliest_wrong(self, model: Model, most: int | None = None) -> Tensor:
        """The wrong classes by their clean logits, the largest first, at most so many: int64 [B, count]."""
        wrong = self.clean_logits(model).scatter(1, self.y[:, None], -torch.inf)
        count = wrong.shape[1] - 1
        return wrong.topk(count if most is None else min(most, count)).indices

    def no_steps(self) -> Tensor:
        """The step counter of a new state, int64 [B]."""
        return torch.zeros_like(self.y)


@dataclass(frozen=True)
class State:
    """Lanes under attack. An attack that has to remember more adds fields in a subclass."""

    x: Tensor
    """The clean images [B, ...]."""
    y: Tensor
    """Their labels, int64 [B]."""
    x_adv: Tensor
    """Where the attack is now."""
    step: Tensor
    """Steps taken so far, int64 [B]."""

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
"""The state of an attack."""


class Step(NamedTuple, Generic[S]):
    """What one step of all lanes gave."""

    state: S
    """The lanes, a step on."""
    x_tried: Tensor
    """The points at which the model was asked."""
    logits: Tensor
    """What it answered there, [B, C]."""


@dataclass
class Lanes:
    """Attempts under way: on which example, which attempt on it, whether it still counts, and its state."""

    example: Tensor
    attempt: Tensor
    live: Tensor
    state: State

    def __len__(self) -> int:
        return len(self.example)

    def select(self, which: Tensor) -> Lanes:
        return Lanes(self.example[which], self.attempt[which], self.live[which], self.state.select(which))

    def join(self, other: Lanes) -> Lanes:
        return Lanes(
            torch.cat([self.example, other.example]),
            torch.cat([self.attempt, other.attempt]),
            torch.cat([self.live, other.live]),
            self.state.join(other.state),
        )

    def tensors(self) -> dict[str, Tensor]:
        own = {"example": self.example, "attempt": self.attempt, "live": self.live}
        return own | {f"state.{name}": value for name, value in self.state.tensors().items()}
