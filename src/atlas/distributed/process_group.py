"""Processes that work together: shares of a batch, means over ranks, agreement. Or one process alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atlas.errors import LostWorkerError
from atlas.rng import Rng

State = tuple[Mapping[str, Tensor], Mapping[str, Any]]
"""Tensors by name and a JSON-able table."""
FEWEST = 2
"""Images of a share: BatchNorm refuses a batch of one."""


class Share(NamedTuple):
    """What one rank does of a batch."""

    part: slice
    weight: float
    """Of its mean in the mean over the batch."""


@contextmanager
def reached() -> Iterator[None]:
    """Turn a failed message into the error of a lost process."""
    try:
        yield
    except RuntimeError as error:
        raise LostWorkerError(
            "a process of the group was killed or does not respond: resume to continue from the last saved "
            "state"
        ) from error


@dataclass(frozen=True)
class ProcessGroup:
    """One of `size` processes that `connected` has brought together; by default a process alone.

    Example:
        >>> ProcessGroup().share(10)
        Share(part=slice(0, 10, None), weight=1.0)
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes files and prints."""
        return self.rank == 0

    def share(self, count: int) -> Share:
        """Which of a batch's `count` images are this rank's.

        Shares differ by one image at most. A rank without a share of its own repeats one at weight 0.
        """
        busy = min(self.size, max(1, count // FEWEST))
        index = self.rank % busy
        part = slice(count * index // busy, count * (index + 1) // busy)
        return Share(part, (part.stop - part.start) / count if self.rank < busy else 0.0)

    @torch.no_grad()
    def mean_gradients(self, model: nn.Module, weight: float) -> None:
        """Replace the gradients by their weighted mean over ranks, which is that of the whole batch.

        A weight of which no rank has a gradient stays without one, as the last bias where the loss is a
        Jacobian's: zeros in its place would let weight decay and momentum move it.
        """
        if self.size == 1:
            return
        weights = [p for p in model.parameters() if p.requires_grad]
        has = torch.tensor([float(p.grad is not None) for p in weights], device=weights[0].device)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in weights]
        *means, known = self._sum([*gradients, has], weight)
        for p, mine, mean, some in zip(weights, gradients, means, known.tolist(), strict=True):
            p.grad = mine.copy_(mean) if some else None

    @torch.no_grad()
    def mean_buffers(self, model: nn.Module, weight: float) -> None:
        """The same for running statistics.

        In float64, whose rounding float32 never sees: a buffer that no step changes keeps its bits. Whole
        numbers are left alone: they count passes, which are as many on every rank.
        """
        buffers = [b for b in model.buffers() if b.is_floating_point()]
        if buffers and self.size > 1:
            for buffer, mean in zip(buffers, self._sum([b.double() for b in buffers], weight), strict=True):
                buffer.copy_(mean)

    def mean(self, values: Sequence[float], weight: float) -> list[float]:
        """The means over the batch of which these are the means over this rank's share."""
        (means,) = self._sum([torch.tensor(values, dtype=torch.float64, device="cpu")], weight)
        return means.tolist()

    def total(self, counts: Sequence[int]) -> list[int]:
        """The sums over all ranks."""
        (totals,) = self._sum([torch.tensor(counts, device="cpu")])
        return totals.tolist()

    def agree(self, signal: int | None) -> int | None:
        """The signal that any of the ranks has caught, or the largest number where there are several."""
        caught = torch.tensor(signal or 0, device="cpu")
        if self.size > 1:
            with reached():
                dist.all_reduce(caught, dist.ReduceOp.MAX)
        return int(caught) or None

    def from_first(self, state: State | None) -> State | None:
        """What the first rank gives, whatever the others give."""
        if self.size == 1:
            return state
        if state is not None:  # a GPU's tensors would be put on the same GPU by all ranks
            state = {name: tensor.detach().cpu() for name, tensor in state[0].items()}, state[1]
        message = [state]
        with reached():
            dist.broadcast_object_list(message, 0, device=torch.device("cpu"))
        return message[0]

    def reseed(self, seed: int, step: int) -> None:
        """Give torch's own generator, from which dropout draws, the numbers of this step.

        A function of (seed, step, rank), so that a state holds nothing of any rank's own. A process alone
        has one stream, which its state holds.
        """
        if self.size > 1:
            rng = Rng.lanes(seed, torch.tensor([self.rank], device="cpu")).fold("torch", step)
            torch.manual_seed(int(rng.bits(())))

    def wait(self) -> None:
        """Wait for all ranks."""
        self.agree(None)  # and not a barrier, which NCCL would hold on a GPU of its own choice

    def _sum(self, tensors: Sequence[Tensor], weight: float = 1) -> list[Tensor]:
        """The sums of each tensor times `weight` over all ranks, by one message."""
        flat = torch.cat([tensor.flatten() for tensor in tensors]).mul_(weight)
        if self.size > 1:
            with reached():
                dist.all_reduce(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
