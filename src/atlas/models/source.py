"""Models by what the command line names: weights, an archive, an ONNX file or a factory."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

import torch
from torch import Tensor, nn

from atlas.errors import CheckpointError, UsageError
from atlas.models import build
from atlas.models.code import is_installed, user_code
from atlas.models.exported import load_exported, load_onnx
from atlas.models.normalize import Normalization, normalized
from atlas.models.user_model import Output
from atlas.models.weights import SUFFIXES, load_weights, normalization_of, read_weights

FILES = (*SUFFIXES, ".pt2", ".onnx")
KINDS = (
    "weights (.safetensors, .pt or .pth, with the model's name), a torch.export archive (.pt2), an ONNX file "
    "(.onnx) or module.path:factory"
)


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to be attacked."""

    model: Callable[[Tensor], Tensor]
    """From images [B, C, H, W] in [0, 1] to logits [B, classes], any B."""
    gradients: bool
    """Whether white-box attacks are possible."""
    device: torch.device
    fingerprint: str
    """A sha256 that identifies the model."""


def load(
    what: str | Path,
    *,
    name: str | None = None,
    num_classes: int = 10,
    shape: Sequence[int] = (1, 28, 28),
    normalize: str | Normalization | None = None,
    output: str | None = None,
    device: torch.device | str = "cpu",
) -> Loaded:
    """The model that `what` names: weights, a torch.export archive, an ONNX file or a factory.

    For a run's folder use `atlas.load_model`, and `of_module` for the model that it returns.

    Args:
        what: The file, or ``module.path:factory``.
        name: The model that the weights are of.
        num_classes: Of the data set.
        shape: (C, H, W) of an image of the data set.
        normalize: (mean, std), or a standard name such as "imagenet", for a model that does not normalise.
        output: The place or the key of the logits among several outputs.
        device: Where it is put.

    Raises:
        UsageError: There is no such model, or the options do not fit it.
        CheckpointError: The file cannot be read.
    """
    path, kind, device = Path(what), Path(what).suffix.lower(), torch.device(device)
    _check(what, path, kind, name)
    if kind in SUFFIXES or kind not in FILES:
        if kind in SUFFIXES:
            module = _weighted(path, str(name), num_classes, shape, normalize)
        else:
            module = build(str(what), num_classes, shape, normalize)
        return of_module(module if output is None else Output(module, output), device)
    if output is not None:
        raise UsageError(f"{what} is a whole model: export it with the logits as its only output")
    model = load_exported(path, device) if kind == ".pt2" else load_onnx(path, device)
    if normalize is None:
        return Loaded(model, kind == ".pt2", device, model.sha256)
    whole = normalized(model, normalize, shape[0]).to(device)
    return Loaded(whole, kind == ".pt2", device, fingerprint(whole))


def _check(what: str | Path, path: Path, kind: str, name: str | None) -> None:
    if kind in FILES and not path.is_file():
        raise UsageError(f"there is no file {what}; expected {KINDS}")
    if kind in FILES:
        try:
            with path.open("rb"):  # libraries report a file that they may not read as missing or damaged
                pass
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if kind not in FILES and ":" not in str(what):
        raise UsageError(f"{what} is not a model; expected a run's folder, {KINDS}")
    if kind in SUFFIXES and name is None:
        raise UsageError(f"{what} holds weights: name their model with --model, see `atlas models`")
    if kind not in SUFFIXES and name is not None:
        raise UsageError(f"the model name {name!r} is for weights files; {what} is a whole model: omit it")


def of_module(model: nn.Module, device: torch.device | str = "cpu") -> Loaded:
    """A module that is in memory, put on the device and in eval mode."""
    return Loaded(model.to(device).eval(), True, torch.device(device), fingerprint(model))


def fingerprint(model: nn.Module) -> str:
    """The sha256 of its layers, weights and buffers, and of the user's code that it runs.

    Of the code too, because the fix of a masked gradient may change nothing else.
    """
    return _sha256(model, sorted(set(user_code(model).values())))


def former_fingerprint(model: nn.Module) -> str:
    """The fingerprint of older versions, which included whole modules of the user's code."""
    sources = []
    for module in _user_modules({type(layer).__module__ for layer in model.modules()}):
        with suppress(OSError, TypeError):  # typed at a prompt, say
            sources.append(inspect.getsource(module))
    return _sha256(model, sources)


def _sha256(model: nn.Module, code: Sequence[str]) -> str:
    digest = hashlib.sha256(str(model).encode())
    for text in code:
        digest.update(text.encode())
    for name, tensor in {**model.state_dict(), **dict(model.named_buffers())}.items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _user_modules(names: set[str]) -> list[ModuleType]:
    """The modules of these names, and those that they take something from, without installed ones."""
    found: dict[str, ModuleType] = {}
    todo = set(names)
    while todo:
        module = sys.modules.get(name := todo.pop())
        file = getattr(module, "__file__", None)
        if module is None or name in found or file is None or is_installed(file):
            continue
        found[name] = module
        for value in list(vars(module).values()):
            if isinstance(value, ModuleType):
                todo.add(value.__name__)
            elif isinstance(value, type | FunctionType):
                todo.add(value.__module__)
    return [found[name] for name in sorted(found)]


def _weighted(
    path: Path, name: str, num_classes: int, shape: Sequence[int], normalize: str | Normalization | None
) -> nn.Module:
    """The model with the weights of the file, which may hold the normalisation too, as those of a run do."""
    tensors = read_weights(path)
    own = normalization_of(tensors)
    if own is not None and normalize is not None:
        raise UsageError(f"{path} already holds a normalisation, mean {own[0]} and std {own[1]}: omit yours")
    model = build(name, num_classes, shape, own or normalize)
    load_weights(model, tensors, path, name)
    return model
