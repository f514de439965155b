"""The memory that a step takes, next to what it cannot do without: activations saved for its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from atlas.bench.cases import Case
from atlas.bench.profiled import allocated_peak
from atlas.bench.step import pairs
from atlas.data import Batch


@dataclass(frozen=True)
class Memory:
    """In bytes, beyond weights, their gradients, momenta and the batch, which are there before the step."""

    saved: int
    """Activations that the graphs of the step hold at a time, at most; what two of them hold counts once."""
    peak: int
    """What is allocated at a time, at most."""


def memories(model: nn.Module, cases: Sequence[Case], batch: Batch) -> dict[str, Memory]:
    """The memory of a step of each case, by its label."""
    return {pair.case.label: memory(pair.step, model, batch) for pair in pairs(model, cases, batch)}


def memory(step: Callable[[], None], model: nn.Module, batch: Batch) -> Memory:
    """Of one step, after one that makes gradients and momenta."""
    step()
    return Memory(saved_activations(step, model, batch), _peak(step, batch.x.device))


def _peak(step: Callable[[], None], device: torch.device) -> int:
    if device.type != "cuda":
        return allocated_peak(step)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def saved_activations(step: Callable[[], None], model: nn.Module, batch: Batch) -> int:
    """The most bytes that are saved for backward passes at a time."""
    there = {_place(tensor) for tensor in (*model.parameters(), *model.buffers(), *batch)}
    ledger = Ledger()

    def pack(tensor: Tensor) -> Tensor | Saved:
        return tensor if _place(tensor) in there else Saved(tensor, ledger)

    def unpack(kept: Tensor | Saved) -> Tensor:
        return kept.tensor if isinstance(kept, Saved) else kept

    with saved_tensors_hooks(pack, unpack):
        step()
    return ledger.peak


class Ledger:
    """Which pieces of memory are held, how often, and the most bytes so far."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.now = self.peak = 0

    def take(self, place: int, size: int) -> None:
        if place not in self.held:
            self.now += size
            self.peak = max(self.peak, self.now)
        self.held[place] = self.held.get(place, 0) + 1

    def give_back(self, place: int, size: int) -> None:
        self.held[place] -= 1
        if not self.held[place]:
            del self.held[place]
            self.now -= size


class Saved:
    """A tensor that a graph holds; when the graph lets go of it, the ledger knows."""

    def __init__(self, tensor: Tensor, ledger: Ledger) -> None:
        self.tensor, self.ledger = tensor, ledger
        self.entry = _place(tensor), tensor.untyped_storage().nbytes()
        ledger.take(*self.entry)

    def __del__(self) -> None:
        self.ledger.give_back(*self.entry)


def _place(tensor: Tensor) -> int:
    """Where its storage begins: views of one tensor share it."""
    return tensor.untyped_storage().data_ptr()
