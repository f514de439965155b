"""What a training step computes, keeps and sends, counted without computing it.

The passes of a method's equation run on the device meta, where tensors have shapes and no values: any model
at any image size takes no memory and seconds. FLOPs are those of torch's own formulas for convolutions and
matrix products, two for a multiplication with its addition; what is done number by number (BatchNorm, ReLU,
the attack's moves, the optimiser) is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from atlas import models
from atlas.bench.cases import Case
from atlas.bench.passes import Bare
from atlas.errors import UsageError

FLOAT, DOUBLE = 4, 8
"""Bytes of a number: of weights, gradients and activations; of statistics and the log on their way."""
LOGGED = 8
"""Numbers that a step writes down, at most: the loss, its terms, the gradient's norm, the accuracy."""


@dataclass(frozen=True)
class Work:
    """What a step does."""

    flops: int
    backward_flops: int
    """Of the last backward pass, after which gradients are whole."""
    saved: int
    """Bytes that autograd keeps for backward passes, at the moment of the step when they are most."""


@dataclass(frozen=True)
class Growing:
    """Work for any number of images: all of it is a constant and so much an image."""

    two: Work
    four: Work

    def of(self, images: int) -> Work:
        ends = zip(astuple(self.two), astuple(self.four), strict=True)
        return Work(*(two + (four - two) * (images - 2) // 2 for two, four in ends))


def growing(name: str, case: Case, shape: Sequence[int], classes: int) -> Growing:
    """The work of a method on the model called `name`, for any number of images."""
    model = models.build(name, classes, shape, device="meta")
    two, four = (work(model, case, torch.empty(n, *shape, device="meta"), classes) for n in (2, 4))
    return Growing(two, four)


def work(model: nn.Module, case: Case, x: Tensor, classes: int) -> Work:
    """The work of one step on images x [B, C, H, W], on their device."""
    if case.equation is None:
        raise UsageError(
            f"method {case.label!r} has no equation in atlas.bench.passes to count the passes of"
        )
    y, v = x.new_zeros(len(x), dtype=torch.int64), x.new_ones(len(x), classes)
    weights = [p for p in model.parameters() if p.requires_grad]
    flops, saved = Flops(), Saved(model)  # type: ignore[no-untyped-call]
    with flops, saved:
        bare = Watched(model, weights, torch.optim.SGD(weights, 0.0, 0.9), x, x.clone(), y, v, flops)
        case.equation.run(bare, case.steps)
    return Work(flops.total, flops.update, saved.peak)


class Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums torch's formulas over all operations, in gradients of gradients too."""

    total = 0
    update = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        self.total += formula(*args, **(kwargs or {}), out_val=out) if formula else 0
        return out


@dataclass(frozen=True)
class Watched(Bare):
    """Notes which FLOPs are those of the update."""

    flops: Flops

    def update(self, loss: Tensor) -> None:
        before = self.flops.total
        super().update(loss)
        self.flops.update = self.flops.total - before


class Saved(saved_tensors_hooks):
    """Bytes that autograd keeps and the model does not hold anyway: each storage once, while it is kept."""

    def __init__(self, model: nn.Module) -> None:
        self.known = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self.holders: Counter[int] = Counter()
        self.bytes = self.peak = 0
        super().__init__(lambda tensor: Kept(tensor, self), lambda kept: kept.tensor)

    def take(self, tensor: Tensor) -> None:
        key = _storage(tensor)
        if key not in self.known and not self.holders[key]:
            self.bytes += tensor.untyped_storage().nbytes()
            self.peak = max(self.peak, self.bytes)
        self.holders[key] += 1

    def release(self, tensor: Tensor) -> None:
        key = _storage(tensor)
        self.holders[key] -= 1
        if key not in self.known and not self.holders[key]:
            self.bytes -= tensor.untyped_storage().nbytes()


class Kept:
    """A tensor for as long as the graph holds it."""

    def __init__(self, tensor: Tensor, by: Saved) -> None:
        self.tensor, self.by = tensor, by
        by.take(tensor)

    def __del__(self) -> None:
        self.by.release(self.tensor)


def _storage(tensor: Tensor) -> int:
    """Which memory a tensor is in; tensors on meta have no address to tell them apart by."""
    return int(tensor.untyped_storage()._cdata)


@dataclass(frozen=True)
class Sizes:
    """What of a model has to be held and sent, whatever the batch."""

    parameters: int
    tensors: int
    """Weights come in so many; a message has a flag for each, whether it has a gradient."""
    statistics: int
    """Numbers in buffers: running means and variances."""

    @classmethod
    def of(cls, model: nn.Module) -> Sizes:
        trained = [p for p in model.parameters() if p.requires_grad]
        floats = [b for b in model.buffers() if b.is_floating_point()]
        return cls(sum(p.numel() for p in trained), len(trained), sum(b.numel() for b in floats))

    @property
    def gradients(self) -> int:
        """Bytes of the large message."""
        return FLOAT * (self.parameters + self.tensors)

    @property
    def messages(self) -> tuple[int, ...]:
        """Bytes of each sum of a step over all ranks: gradients, statistics, log, whether to leave."""
        statistics = (DOUBLE * self.statistics,) if self.statistics else ()
        return self.gradients, *statistics, DOUBLE * LOGGED, DOUBLE

    def held(self, ranks: int) -> dict[str, int]:
        """Bytes of a rank beside activations, by what for; SGD with momentum, no average of weights."""
        weights = FLOAT * (self.parameters + self.statistics)
        return {
            "weights": weights,
            "gradients": FLOAT * self.parameters,
            "momentum": FLOAT * self.parameters,
            "best": weights,
            "message": self.gradients if ranks > 1 else 0,
        }
