"""A user's model: made by a factory `module.path:factory`, or wrapped to map float32 images to logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from atlas.config import import_object
from atlas.errors import UsageError, user_code_errors
from atlas.models.networks import Shape

Make = Callable[[int, Shape], nn.Module]
_EXPECTED = (
    "a function or class that takes num_classes=..., shape=..., both or neither, and makes an nn.Module"
)


def user_model(name: str) -> Make:
    """What makes the model `name`: its factory, given num_classes and shape if it takes them."""
    factory = import_object("model", name)
    if not callable(factory) or isinstance(factory, nn.Module):
        raise UsageError(f"model {name!r} must be {_EXPECTED}, got a {type(factory).__name__}")

    def make(num_classes: int, shape: Shape) -> nn.Module:
        with user_code_errors(f"model {name!r}", UsageError, f"; it must be {_EXPECTED}"):
            taken = inspect.signature(factory).parameters
            everything = any(each.kind is each.VAR_KEYWORD for each in taken.values())
            offered = {"num_classes": num_classes, "shape": shape}
            model = factory(**{key: value for key, value in offered.items() if everything or key in taken})
        if not isinstance(model, nn.Module):
            raise UsageError(f"model {name!r} must be {_EXPECTED}, but it made a {type(model).__name__}")
        return model

    return make


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
            return outputs[self.key]  # type: ignore[no-any-return]  # checked where the model is called
        except (LookupError, TypeError) as error:
            found = list(outputs) if isinstance(outputs, dict) else f"a {type(outputs).__name__}"
            raise UsageError(f"the model has no output {self.key!r}: it returns {found}") from error


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


def weight_dtype(model: object) -> torch.dtype:
    """The precision of a module's weights if they all have the same, else float32."""
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    found = {weight.dtype for weight in weights if weight.is_floating_point()}
    return found.pop() if len(found) == 1 else torch.float32
