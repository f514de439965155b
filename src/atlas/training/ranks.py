"""What a trainer asks of the processes that train with it; here, of one that trains alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

State = tuple[Mapping[str, Tensor], Mapping[str, Any]]
"""Tensors by name and a JSON-able table."""


class Share(NamedTuple):
    """What one rank does of a batch."""

    part: slice
    weight: float
    """Of its mean in the mean over the batch."""


@dataclass(frozen=True)
class Ranks:
    """One process alone: all is its own share, and it agrees with itself."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and speaks."""
        return self.rank == 0

    def share(self, count: int) -> Share:
        """Which of a batch's `count` images are this rank's."""
        return Share(slice(None), 1.0)

    def mean_gradients(self, model: nn.Module, weight: float) -> None:
        """Make the gradients of all shares, each by its weight, those of the whole batch."""

    def mean_buffers(self, model: nn.Module, weight: float) -> None:
        """The same for running statistics."""

    def mean(self, values: Sequence[float], weight: float) -> Sequence[float]:
        """The means over the batch of which these are the means over this rank's share."""
        return values

    def total(self, counts: Sequence[int]) -> Sequence[int]:
        """The sums over all ranks."""
        return counts

    def agree(self, signal: int | None) -> int | None:
        """The signal that any of the ranks has caught."""
        return signal

    def from_first(self, state: State | None) -> State | None:
        """What the first rank gives, whatever the others give."""
        return state

    def reseed(self, seed: int, step: int) -> None:
        """Give torch's own generator, from which dropout draws, the numbers of this step."""

    def wait(self) -> None:
        """Until all ranks have come here."""
