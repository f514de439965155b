"""A user's model behind a layer that makes it one from float32 images to a tensor of logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from atlas.errors import UsageError


class Output(nn.Module):
    """One of several outputs of a model: `output` is its place in a tuple, or its key in a dict."""

    def __init__(self, net: nn.Module, output: str) -> None:
        super().__init__()
        self.net = net
        self.key = int(output) if output.isdecimal() else output

    def extra_repr(self) -> str:
        return f"key={self.key!r}"

    def forward(self, x: Tensor) -> Tensor:
        outputs: Any = self.net(x)
        try:
            return outputs[self.key]  # type: ignore[no-any-return]  # checked where the model is asked
        except (LookupError, TypeError) as error:
            found = list(outputs) if isinstance(outputs, dict) else f"a {type(outputs).__name__}"
            raise UsageError(f"the model has no output {self.key!r}: it gives {found}") from error


class InDtype(nn.Module):
    """A model in another precision than float32: images are converted for it, and its logits back."""

    like: Tensor

    def __init__(self, net: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.net = net
        # A buffer, so that a copy of the model in yet another precision converts to that.
        self.register_buffer("like", torch.empty(0, dtype=dtype, device="cpu"), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x.to(self.like.dtype))
        return logits.to(x.dtype)


def own_dtype(model: object) -> torch.dtype:
    """The precision of a module's weights, where all have one; else float32."""
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    found = {weight.dtype for weight in weights if weight.is_floating_point()}
    return found.pop() if len(found) == 1 else torch.float32
