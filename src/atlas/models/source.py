"""What a model can be on the command line, and what an evaluation has to know of it."""

from __future__ import annotations

import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from atlas.errors import CheckpointError, UsageError
from atlas.models import build
from atlas.models.exported import load_exported
from atlas.models.onnx import load_onnx

Normalization = tuple[Sequence[float], Sequence[float]]
FILES = (".safetensors", ".pt2", ".onnx")
PICKLED = (".pt", ".pth", ".ckpt", ".pkl", ".bin")
KINDS = (
    "weights (.safetensors, with the model's name), a torch.export archive (.pt2), an ONNX file (.onnx) or "
    "module.path:factory"
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
    """A sha256 that tells it from every other model."""


def load(
    what: str | Path,
    *,
    name: str | None = None,
    num_classes: int = 10,
    shape: Sequence[int] = (1, 28, 28),
    normalize: Normalization | None = None,
    device: torch.device | str = "cpu",
) -> Loaded:
    """The model that `what` names: weights for the model called `name`, an archive, an ONNX file, a factory.

    `num_classes` and `shape` are those of the data set; `normalize` is (mean, std), a number a channel each,
    for a model that does not centre its images itself. A run's folder is for `atlas.load_model`, and the
    model that this gives for `of_module`.
    """
    path, kind, device = Path(what), Path(what).suffix.lower(), torch.device(device)
    _check(what, path, kind, name)
    if kind == ".safetensors":
        return of_module(_weighted(path, str(name), num_classes, shape, normalize), device)
    if kind not in FILES:
        return of_module(build(str(what), num_classes, shape, normalize), device)
    if normalize is not None:
        raise UsageError(f"{what} is a whole model: export it with its normalisation as the first layer")
    model = load_exported(path, device) if kind == ".pt2" else load_onnx(path, device)
    return Loaded(model, kind == ".pt2", device, model.sha256)


def _check(what: str | Path, path: Path, kind: str, name: str | None) -> None:
    if kind in PICKLED:
        raise UsageError(
            f"{what} is a pickle by its name, which can run anything when loaded; wanted {KINDS}: write the "
            "weights with safetensors.torch.save_file(model.state_dict(), path)"
        )
    if kind in FILES and not path.is_file():
        raise UsageError(f"there is no file {what}; wanted {KINDS}")
    if kind not in FILES and ":" not in str(what):
        raise UsageError(f"{what} is no model; wanted a run's folder, {KINDS}")
    if kind == ".safetensors" and name is None:
        raise UsageError(
            f"{what} holds weights: say whose, by a model's name or module.path:factory (--model)"
        )
    if kind != ".safetensors" and name is not None:
        raise UsageError(
            f"the model name {name!r} goes with weights (.safetensors); {what} has no use for it"
        )


def of_module(model: nn.Module, device: torch.device | str = "cpu") -> Loaded:
    """A module that is at hand, on the device and in eval mode."""
    return Loaded(model.to(device).eval(), True, torch.device(device), fingerprint(model))


def fingerprint(model: nn.Module) -> str:
    """The sha256 of its layers, weights and buffers, and of one's own code behind the layers.

    Of the code, because whoever mends a masked gradient may change nothing else.
    """
    digest = hashlib.sha256(str(model).encode())
    for module in _own_modules({type(layer).__module__ for layer in model.modules()}):
        with suppress(OSError, TypeError):  # typed at a prompt, say
            digest.update(inspect.getsource(module).encode())
    for name, tensor in {**model.state_dict(), **dict(model.named_buffers())}.items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _own_modules(names: set[str]) -> list[ModuleType]:
    """The modules of these names, and those that they take something from, without installed ones."""
    found: dict[str, ModuleType] = {}
    todo = set(names)
    while todo:
        module = sys.modules.get(name := todo.pop())
        if module is None or name in found or _installed(module):
            continue
        found[name] = module
        for value in list(vars(module).values()):
            if isinstance(value, ModuleType):
                todo.add(value.__name__)
            elif isinstance(value, type | FunctionType):
                todo.add(value.__module__)
    return [found[name] for name in sorted(found)]


def _installed(module: ModuleType) -> bool:
    """Whether it comes with Python, with a package, or with ATLAS."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.partition(".")[0] == __package__.partition(".")[0]:
        return True
    packaged = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return bool(packaged) or Path(file).is_relative_to(sysconfig.get_path("stdlib"))


def _weighted(
    path: Path, name: str, num_classes: int, shape: Sequence[int], normalize: Normalization | None
) -> nn.Module:
    """The model with the weights of the file, which may hold the normalisation too, as those of a run do."""
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    own = [tensors[key].flatten().tolist() for key in ("normalize.mean", "normalize.std") if key in tensors]
    if own and normalize is not None:
        raise UsageError(f"{path} has a normalisation of its own, by {own}; leave out {normalize}")
    model = build(name, num_classes, shape, (own[0], own[-1]) if own else normalize)
    core = model.get_submodule("net") if normalize is not None else model
    try:
        core.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not fit {name!r}: {error}") from error
    return model
