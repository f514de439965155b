"""The memory that a step takes, next to what it cannot do without: activations saved for its gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from atlas.bench.cases import Case
from atlas.bench.cost import Saved
from atlas.bench.profiled import allocated_peak
from atlas.bench.step import Settings, trainer
from atlas.data import Batch


@dataclass(frozen=True)
class Memory:
    """In bytes, beyond weights, their gradients, momenta and the batch, which are there before the step."""

    saved: int
    """Activations that the graphs of the step hold at a time, at most; what two of them hold counts once."""
    peak: int
    """What is allocated at a time, at most."""


def memories(
    model: nn.Module, cases: Sequence[Case], batch: Batch, settings: Settings | None = None
) -> dict[str, Memory]:
    """The memory of a step of each case, by its label."""
    found = {}
    for case in cases:
        own = copy.deepcopy(model)
        step = partial(trainer(own, case, batch, settings=settings).step, batch)
        found[case.label] = memory(step, own, batch)
    return found


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
    """The most bytes that are saved for backward passes at a time, beside weights and batch."""
    saved = Saved(model)
    saved.known |= {int(tensor.untyped_storage()._cdata) for tensor in batch}
    with saved:
        step()
    return saved.peak
