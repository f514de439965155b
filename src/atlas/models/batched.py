"""A model that takes batches of some sizes only, made to take any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from atlas.errors import UsageError


class Batched(nn.Module):
    """Batches are split into parts of at most `most` images, and a part of less than `least` is filled up.

    `shape` is that of an image, None where any size will do; images are given to `call` in `dtype`, or in
    that to which the module is moved. Copies of an image fill a part up, and their outputs are dropped.
    """

    like: Tensor

    def __init__(
        self,
        call: Callable[[Tensor], Tensor],
        shape: Sequence[int | None],
        dtype: torch.dtype,
        sizes: tuple[int, int],
        sha256: str,
    ) -> None:
        super().__init__()
        self.call, self.shape, self.sha256 = call, tuple(shape), sha256
        self.least, self.most = sizes
        self.register_buffer("like", torch.empty(0, dtype=dtype), persistent=False)

    def extra_repr(self) -> str:
        return f"sha256={self.sha256}"  # so that two models whose insides do not show differ in their text

    def train(self, mode: bool = True) -> Self:
        """Its own flag alone: a model from a file has the mode in which it was written."""
        self.training = mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        fits = x.ndim == len(self.shape) + 1 and all(
            wanted in (None, got) for wanted, got in zip(self.shape, x.shape[1:], strict=True)
        )
        if not fits:
            raise UsageError(f"the model was made for images {self._wanted()} and got {list(x.shape[1:])}")
        parts = torch.split(x.to(self.like.dtype), self.most)
        return torch.cat([self._ask(part) for part in parts]).to(x.dtype)

    def _wanted(self) -> str:
        return f"[{', '.join('any' if size is None else str(size) for size in self.shape)}]"

    def _ask(self, x: Tensor) -> Tensor:
        missing = self.least - len(x)
        if missing <= 0:
            return self.call(x)
        filler = x[:1].expand(missing, *x.shape[1:])
        return self.call(torch.cat([x, filler]))[: len(x)]
