"""The oracles' own network: a ReLU classifier in plain numpy, float64, with its Jacobian as a product.

Nothing here uses atlas or automatic differentiation; `torch_module` hands the same weights to torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ReluNet:
    """f(x) = A_n relu(... relu(A_1 x + c_1) ...) + c_n, for x of any shape, flattened."""

    layers: list[tuple[Array, Array]]

    @classmethod
    def random(cls, seed: int, sizes: tuple[int, ...], gain: float = 1.5) -> ReluNet:
        rng = np.random.default_rng(seed)
        shapes = pairwise(sizes)
        return cls([(gain * rng.normal(size=(n, m)) / m**0.5, 0.3 * rng.normal(size=n)) for m, n in shapes])

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Logits [C] and Jacobian [C, N] at one point."""
        h, jacobian = x.reshape(-1), np.eye(x.size)
        for i, (a, c) in enumerate(self.layers):
            h, jacobian = a @ h + c, a @ jacobian
            if i < len(self.layers) - 1:
                on = h > 0
                h, jacobian = h * on, jacobian * on[:, None]
        return h, jacobian

    def logits(self, x: Array) -> Array:
        return np.stack([self.forward(one)[0] for one in x])

    def jacobian(self, x: Array) -> Array:
        return np.stack([self.forward(one)[1] for one in x])

    def flat(self) -> Array:
        return np.concatenate([part.reshape(-1) for layer in self.layers for part in layer])

    def with_flat(self, values: Array) -> ReluNet:
        """The network whose weights, in the order of `flat`, are these."""
        layers, at = [], 0
        for a, c in self.layers:
            parts = []
            for old in (a, c):
                parts.append(values[at : at + old.size].reshape(old.shape))
                at += old.size
            layers.append((parts[0], parts[1]))
        return ReluNet(layers)

    def torch_module(self) -> nn.Sequential:
        modules: list[nn.Module] = [nn.Flatten()]
        for a, c in self.layers:
            linear = nn.Linear(a.shape[1], a.shape[0], dtype=torch.float64)
            linear.weight.data.copy_(torch.from_numpy(a))
            linear.bias.data.copy_(torch.from_numpy(c))
            modules += [linear, nn.ReLU()]
        return nn.Sequential(*modules[:-1])


@pytest.fixture(scope="session")
def relu_net() -> Callable[..., ReluNet]:
    """relu_net(seed, sizes, gain=1.5) gives a random network."""
    return ReluNet.random
