"""While an attack runs, the model stands still; afterwards it is exactly as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from atlas.attacks.folded import FoldedConv, slow_convolutions
from atlas.errors import UsageError, unknown

Model = Callable[[Tensor], Tensor]
BatchNormMode = Literal["eval", "train"]


def is_random(model: Model) -> bool:
    """Whether the model says of itself, by an attribute `random`, that it answers otherwise each time."""
    return bool(getattr(model, "random", False))


def check_autograd() -> None:
    """Refuse `torch.inference_mode()`: unlike `no_grad`, it cannot be undone inside."""
    if torch.is_inference_mode_enabled():
        raise UsageError(
            "attacks and losses need gradients, which torch.inference_mode() rules out: call them outside of "
            "it; torch.no_grad() is fine for attacks"
        )


def _check_weights(model: nn.Module) -> None:
    if any(tensor.is_inference() for tensor in [*model.parameters(), *model.buffers()]):
        raise UsageError(
            "the model was made inside torch.inference_mode(), so no gradient can be taken through it: build "
            "it and load its weights outside"
        )


@contextmanager
def frozen(model: Model, mode: BatchNormMode = "eval", *, fold: bool = True) -> Iterator[None]:
    """Weights without gradients and all modules in `mode`, put back afterwards, also on an exception.

    Frozen weights make a backward pass input-only, half the work of a full one. In "train" mode
    BatchNorm uses the statistics of the batch; its running ones are put back, because the images that
    an attack passes through are not the ones that are trained on. So is every other buffer: a module may
    count or average in any mode, and one by `torch.export` keeps the mode in which it was exported.

    With `fold`, a first layer that sees one channel takes its gradient in a faster way: see `FoldedConv`.
    """
    check_autograd()
    if mode not in get_args(BatchNormMode):
        raise unknown("mode", mode, get_args(BatchNormMode))
    if not isinstance(model, nn.Module):
        yield
        return
    _check_weights(model)
    modes = [(module, module.training) for module in model.modules()]
    slow = slow_convolutions(model) if fold else []
    trainable = [p for p in model.parameters() if p.requires_grad]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        _switch(model, mode == "train")
        for p in trainable:
            p.requires_grad_(False)
        for layer in slow:
            layer.__class__ = FoldedConv
        yield
    finally:
        for layer in slow:
            layer.__class__ = nn.Conv2d
        for p in trainable:
            p.requires_grad_(True)
        for module, training in modes:
            module.training = training
        for module, name, buffer, before in buffers:
            _restore(module, name, buffer, before)


def _switch(model: nn.Module, training: bool) -> None:
    """`model.train(training)`, past modules by `torch.export`, which refuse it."""
    try:
        model.train(training)
    except NotImplementedError:
        model.training = training
        for child in model.children():
            _switch(child, training)


@torch.no_grad()
def _restore(module: nn.Module, name: str, buffer: Tensor, before: Tensor) -> None:
    if getattr(module, name) is not buffer:
        setattr(module, name, buffer)
    # Not if it is the same: a graph that the caller is going to go back through may hold the buffer.
    if not torch.equal(buffer, before):
        buffer.copy_(before)
