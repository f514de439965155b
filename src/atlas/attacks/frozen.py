"""While an attack runs, the model stands still; afterwards it is exactly as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

Model = Callable[[Tensor], Tensor]
BatchNormMode = Literal["eval", "train"]


@contextmanager
def frozen(model: Model, mode: BatchNormMode = "eval") -> Iterator[None]:
    """Weights without gradients and all modules in `mode`, put back afterwards, also on an exception.

    Frozen weights make a backward pass input-only, half the work of a full one. In "train" mode
    BatchNorm uses the statistics of the batch; its running ones are put back, because the images that
    an attack passes through are not the ones that are trained on.
    """
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    trainable = [p for p in model.parameters() if p.requires_grad]
    buffers = [(b, b.clone()) for b in model.buffers()] if mode == "train" else []
    try:
        model.train(mode == "train")
        for p in trainable:
            p.requires_grad_(False)
        yield
    finally:
        for p in trainable:
            p.requires_grad_(True)
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for b, before in buffers:
                b.copy_(before)
