"""Wide convolutions are faster on a CPU with the channel as the last axis in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from atlas.attacks.frozen import Model
from atlas.errors import is_ctrl_c

WIDE = 32
"""Channels from which on it pays: docs/speed.md has how much, on two networks."""


@contextmanager
def arranged(model: Model, x: Tensor) -> Iterator[None]:
    """The weights of convolutions in that order, put back afterwards, also on an exception.

    Answers and gradients are the same, up to rounding. Left as they are: narrow models, other devices, and a
    model that cannot answer x [B, C, H, W] so, as one cannot that takes its features apart by `view`.
    """
    weights = _weights(model) if isinstance(model, nn.Module) else []
    before = [weight.data for weight in weights]
    try:
        if weights:
            # Not contiguous(), which leaves a weight of one channel as it is, and with it all that it feeds.
            _put(weights, [data.clone(memory_format=torch.channels_last) for data in before])
            if not _answers(model, x[:1]):
                _put(weights, before)
        yield
    finally:
        _put(weights, before)


def _weights(model: nn.Module) -> list[nn.Parameter]:
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    if not any(layer.in_channels >= WIDE for layer in layers):
        return []
    weights = [p for layer in layers for p in layer.parameters(recurse=False) if p.dim() == 4]
    return [p for p in weights if p.device.type == "cpu"]


def _put(weights: Sequence[nn.Parameter], data: Sequence[Tensor]) -> None:
    for weight, values in zip(weights, data, strict=True):
        weight.data = values


@torch.no_grad()
def _answers(model: Model, x: Tensor) -> bool:
    try:
        model(x)
    except (Exception, SystemExit) as error:  # it is told where the model is asked in its own order
        if is_ctrl_c(error):
            raise
        return False
    return True
