"""Ranks that share a batch: how long a step takes them, and where the network becomes the limit.

A rank computes its share at a given speed and then sums with the others over a ring, message after message,
as `atlas.fit` does: nothing is sent while the backward pass runs. The time is

    t(N) = FLOPs(share) / speed + sum over messages of [2 (N - 1) latency + 2 (N - 1) / N bytes / bandwidth].

Left out: that small shares are computed at a lower speed, that ranks wait for the slowest, that they disturb
each other where they share memory or a link, making batches, validation and states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from atlas.training.team import FEWEST


@dataclass(frozen=True)
class Link:
    """What joins two neighbours of the ring."""

    bandwidth: float
    """Bytes a second, each way."""
    latency: float
    """Seconds that a message takes beside its bytes, from one to the next."""

    def seconds(self, ranks: int, messages: Sequence[int]) -> float:
        """Of the sums of messages of these bytes over all ranks, one after the other."""
        hops = 2 * (ranks - 1)
        return sum(hops * self.latency + sent(ranks, size) / self.bandwidth for size in messages)


def sent(ranks: int, size: int) -> float:
    """Bytes that each rank of a ring sends, and receives, for one sum of a message of `size` bytes."""
    return 2 * (ranks - 1) / ranks * size


def fitted(ranks: int, sizes: Sequence[int], seconds: Sequence[float]) -> Link:
    """The link that comes nearest to measured times of sums, by least squares of relative errors."""
    times, hops = np.array(seconds), 2.0 * (ranks - 1)
    columns = np.stack([np.full(len(times), hops), [sent(ranks, size) for size in sizes]], 1)
    (latency, a_byte), *_ = np.linalg.lstsq(columns / times[:, None], np.ones(len(times)), rcond=None)
    return Link(1 / float(a_byte), max(0.0, float(latency)))


@dataclass(frozen=True)
class Job:
    """A step of the whole batch, on devices that compute `speed` FLOPs a second."""

    batch: int
    flops: float
    backward_flops: float
    messages: Sequence[int]
    """The first is the gradients'."""
    speed: float

    def share(self, ranks: int) -> int:
        """Images of the largest share."""
        return math.ceil(self.batch / ranks)

    def computing(self, ranks: int) -> float:
        """Seconds that the slowest rank computes."""
        return self.flops / self.batch * self.share(ranks) / self.speed

    def backward(self, ranks: int) -> float:
        """The part of it behind which gradients could be sent, at best."""
        return self.backward_flops / self.batch * self.share(ranks) / self.speed

    def seconds(self, ranks: int, link: Link) -> float:
        return self.computing(ranks) + link.seconds(ranks, self.messages)

    def most(self) -> int:
        """As many ranks as there are shares of two images."""
        return max(1, self.batch // FEWEST)

    def hidden_to(self, link: Link) -> int:
        """The most ranks that sum gradients no slower than their last backward pass takes.

        With more of them, sending during that pass would not hide the network.
        """
        return self._to(lambda n: link.seconds(n, self.messages[:1]) <= self.backward(n))

    def half_to(self, link: Link) -> int:
        """The most ranks that compute at least as long as they send."""
        return self._to(lambda n: link.seconds(n, self.messages) <= self.computing(n))

    def _to(self, good: Callable[[int], bool]) -> int:
        return next((n - 1 for n in range(2, self.most() + 1) if not good(n)), self.most())

    def needed(self, ranks: int, latency: float) -> float:
        """The bandwidth at which gradients take as long to sum as to compute; infinite if latency is more."""
        left = self.backward(ranks) - 2 * (ranks - 1) * latency
        return sent(ranks, self.messages[0]) / left if left > 0 else math.inf
