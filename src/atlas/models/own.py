"""A user's own model, named `module.path:factory`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType

from torch import nn

from atlas.errors import UsageError, is_ctrl_c, unknown
from atlas.models.cnn import Shape

Make = Callable[[int, Shape], nn.Module]
_WANTED = (
    "a function or class that makes an nn.Module when called with num_classes=... and shape=..., or as few"
    " of the two as it takes"
)


def own(name: str) -> Make:
    """What makes the model `name`: its factory, given num_classes and shape if it takes them."""
    factory = _factory(name)

    def make(num_classes: int, shape: Shape) -> nn.Module:
        arguments = _accepted(name, factory, {"num_classes": num_classes, "shape": shape})
        try:
            model = factory(**arguments)
        except (Exception, SystemExit) as error:  # a user's factory can raise anything
            if is_ctrl_c(error):
                raise
            raise UsageError(f"model {name!r} failed with {type(error).__name__}: {error}") from error
        if not isinstance(model, nn.Module):
            raise UsageError(f"model {name!r} made a {type(model).__name__}; wanted {_WANTED}")
        return model

    return make


def _factory(name: str) -> Callable[..., object]:
    path, _, attribute = name.partition(":")
    module = _import(name, path)
    if not hasattr(module, attribute):
        here = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == path]
        raise unknown(f"factory in module {path!r}:", attribute, here or dir(module))
    factory = getattr(module, attribute)
    if not callable(factory) or isinstance(factory, nn.Module):
        raise UsageError(f"model {name!r} names a {type(factory).__name__}; wanted {_WANTED}")
    return factory  # type: ignore[no-any-return]  # callable() narrows Any to nothing better


def _import(name: str, path: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # first, as `python -m` has it, so that the user's own file wins
    try:
        return importlib.import_module(path)
    except (Exception, SystemExit) as error:  # a user's module can raise anything while it is imported
        if is_ctrl_c(error):
            raise
        raise UsageError(
            f"model {name!r}: importing {path!r} failed with {type(error).__name__}: {error}; wanted "
            f"module.path:factory, importable from {folder} or installed in this environment"
        ) from error


def _accepted(name: str, factory: Callable[..., object], offered: dict[str, object]) -> dict[str, object]:
    """The offered arguments that the factory takes by name."""
    try:
        signature = inspect.signature(factory)
    except ValueError as error:  # a function of C
        raise UsageError(f"model {name!r} does not tell its arguments ({error}); wanted {_WANTED}") from error
    kinds = {key: parameter.kind for key, parameter in signature.parameters.items()}
    everything = inspect.Parameter.VAR_KEYWORD in kinds.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    taken = {key: value for key, value in offered.items() if everything or kinds.get(key) in by_name}
    try:
        signature.bind(**taken)
    except TypeError as error:
        raise UsageError(f"model {name!r} takes {signature} ({error}); wanted {_WANTED}") from error
    return taken
