"""What is known of each example of an attack: fooled or not, by which attempt, when, with which image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from atlas.attacks.gradients import NotFinite
from atlas.objectives import margin

# What is noted as the attempt of an example that was wrong before any attack, that no attempt has fooled,
# and at which the model gave NaN or infinity.
CLEAN, SURVIVED, BROKEN = -1, -2, -3
NONE = torch.iinfo(torch.int64).max  # no attempt has ended the example so far


@dataclass(frozen=True)
class Outcome:
    """What became of each example; all tensors have the example first."""

    attempt: Tensor  #: which attempt fooled it, int64 [N]; or CLEAN, SURVIVED or BROKEN
    step: Tensor  #: at which step of that attempt, int64 [N]; -1 where none did
    margin: Tensor
    """max_{i != y} f_i - f_y, [N]: at the image that fools; else the largest at the end of any attempt."""
    queries: Tensor  #: forward passes that the attempts up to that one took, int64 [N]
    x_adv: Tensor  #: the image that fools the model; where none was found, the end of the last attempt

    @property
    def robust(self) -> Tensor:
        """Right on the clean image and under every attempt, bool [N]."""
        return self.attempt == SURVIVED

    @property
    def clean(self) -> Tensor:
        """Right on the clean image, bool [N]."""
        return self.attempt != CLEAN

    @property
    def broken(self) -> Tensor:
        """Met by NaN or infinity, so that nothing can be said of them, bool [N]."""
        return self.attempt == BROKEN

    def checked(self) -> Outcome:
        """This outcome, unless an example is broken, which is an error."""
        if self.broken.any():
            raise NotFinite(self.broken)
        return self


class AttackLog:
    """The log of an attack in progress; all tensors have the example first.

    Attempts may end in any order, several at a time. Of those that fool an example the earliest counts, so
    what is recorded in the end is what attempts made one after the other would have found.
    """

    NAMES = ("ended_by", "step", "margin", "broken", "open_attempts", "x_adv")

    def __init__(self, x: Tensor, y: Tensor, logits: Tensor, attempts: int) -> None:
        self.attempts = attempts
        self.broken = ~logits.isfinite().all(1)
        self.wrong = (logits.argmax(1) != y) & ~self.broken
        self.to_attack = (~self.wrong & ~self.broken).nonzero()[:, 0]
        self.ended_by = torch.full_like(y, NONE)
        self.step = torch.full_like(y, -1)
        self.margin = margin(logits, y)
        self.x_adv = x.clone()
        self.open_attempts = torch.zeros_like(y)
        self.open_attempts[self.to_attack] = attempts
        if attempts:
            self.margin[self.to_attack] = -torch.inf

    def undecided(self) -> Tensor:
        """The examples whose verdict is open, bool [N]."""
        return (self.open_attempts > 0) & (self.ended_by == NONE)

    def unbeaten(self) -> int:
        """How many examples no attempt has ended so far."""
        return int((self.ended_by[self.to_attack] == NONE).sum())

    def matters(self, example: Tensor, attempt: Tensor) -> Tensor:
        """Whether these attempts can still change the log, bool."""
        return self.ended_by[example] > attempt

    def fooled(self, example: Tensor, attempt: Tensor, step: Tensor, x_adv: Tensor, margins: Tensor) -> None:
        """These attempts end their examples: fooled, or broken where the margin is NaN."""
        earlier = self.matters(example, attempt)
        self.ended_by.scatter_reduce_(0, example, attempt, "amin")
        # Of several attempts on one example that come in together, only the earliest is recorded.
        which = (earlier & (attempt == self.ended_by[example])).nonzero()[:, 0]
        example = example[which]
        self.step[example] = step[which]
        self.margin[example] = margins[which].to(self.margin.dtype)
        self.broken[example] = margins[which].isnan()
        self.x_adv[example] = x_adv[which]

    def withstood(self, example: Tensor, attempt: Tensor, x_adv: Tensor, margins: Tensor) -> None:
        """These attempts are over and have fooled nobody."""
        self.open_attempts.index_add_(0, example, torch.full_like(example, -1))
        alive = (self.ended_by[example] == NONE).nonzero()[:, 0]
        self.margin.scatter_reduce_(0, example[alive], margins[alive].to(self.margin.dtype), "amax")
        last = alive[attempt[alive] == self.attempts - 1]
        self.x_adv[example[last]] = x_adv[last]

    def outcome(self, steps: int, queries_a_step: int, queries_an_attempt: int) -> Outcome:
        attempt = torch.where(self.ended_by == NONE, SURVIVED, self.ended_by)
        within = torch.where(self.step < steps, (self.step + 1) * queries_a_step, queries_an_attempt)
        queries = attempt * queries_an_attempt + within
        queries = torch.where(attempt == SURVIVED, self.attempts * queries_an_attempt, queries)
        attempt = torch.where(self.wrong, CLEAN, torch.where(self.broken, BROKEN, attempt))
        queries = torch.where((attempt == CLEAN) | (attempt == BROKEN), 0, queries)
        return Outcome(attempt, self.step, self.margin, queries, self.x_adv)

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.NAMES}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        for name in self.NAMES:
            setattr(self, name, tensors[name])
