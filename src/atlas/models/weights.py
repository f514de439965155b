"""Weights from files that other programs wrote: safetensors, and state dicts saved with `torch.save`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from atlas.errors import CheckpointError, UsageError
from atlas.models.normalize import Normalization

PICKLED = (".pt", ".pth", ".ckpt", ".bin", ".tar")
"""How files that `torch.save` writes are called; .tar as in model_best.pth.tar."""
SUFFIXES = (".safetensors", *PICKLED)
INSIDE = ("state_dict", "model_state_dict", "model", "net")
"""Keys under which training scripts save a state dict beside other things."""
WRAPPERS = ("module.", "_orig_mod.", "model.")
"""Prefixes that DataParallel, torch.compile and Lightning put before every key."""
MOST_NAMED = 3


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file by name.

    Pickles are read by torch's restricted unpickler, which makes tensors and plain containers and calls
    nothing that a file names.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"weights must be in a file called *{', *'.join(SUFFIXES)}, got {path}")
    if not path.is_file():
        raise UsageError(f"there is no weights file {path}")
    try:
        with path.open("rb") as file:  # safetensors reports every file that it cannot open as missing
            if path.suffix.lower() == ".safetensors":
                return load_file(path)
            with warnings.catch_warnings(action="ignore"):  # about protocols; errors say it again
                found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive or pickle can raise anything
        raise CheckpointError(f"{path} {_problem(error)}") from error
    for table in (found, *(found.get(key) for key in INSIDE if isinstance(found, Mapping))):
        if isinstance(table, Mapping) and table and all(isinstance(v, Tensor) for v in table.values()):
            return {str(key): tensor for key, tensor in table.items()}
    holds = f"a {type(found).__name__}"
    if isinstance(found, Mapping):
        holds = f"keys {_some([*map(str, found)])}" if found else "an empty dict"
    raise CheckpointError(
        f"{path} holds {holds}, expected a state dict, or one under {', '.join(map(repr, INSIDE))}: save it "
        "with torch.save(model.state_dict(), path)"
    )


def _problem(error: Exception) -> str:
    """Why a weights file could not be read."""
    if isinstance(error, SafetensorError | OSError):
        return f"cannot be read: {error}"
    if named := re.search(r"GLOBAL (\S+)", str(error)):
        return (
            f"holds {named[1]} beside tensors, and loading that could run code, so it was not loaded. If you "
            "trust the file, load it yourself with torch.load(..., weights_only=False) and save only its "
            "weights: torch.save(model.state_dict(), path)"
        )
    if isinstance(error, UnpicklingError):
        return "cannot be read: it is damaged, or was not written by torch.save"
    if "TorchScript" in str(error):
        return (
            "is a TorchScript archive, expected weights: save model.state_dict(), or export the model with "
            "torch.export.save(torch.export.export(model, (x,)), 'model.pt2')"
        )
    return f"cannot be read: {type(error).__name__}: {str(error).partition('.')[0]}"


def normalization_of(tensors: Mapping[str, Tensor]) -> Normalization | None:
    """Mean and std of the normalisation layer in the weights of a run; None where they have none."""
    for form in _unwrapped(tensors):
        if {"normalize.mean", "normalize.std"} <= set(form):
            return form["normalize.mean"].flatten().tolist(), form["normalize.std"].flatten().tolist()
    return None


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path, name: str) -> None:
    """Fill the model called `name` with the tensors of the file.

    Where `build` has put a normalisation before the network and the file has none, it fills the network.
    """
    if [*dict(model.named_children())] == ["normalize", "net"] and normalization_of(tensors) is None:
        model = model.get_submodule("net")
    expected = {key: tensor.shape for key, tensor in model.state_dict().items()}
    tensors = next((form for form in _unwrapped(tensors) if set(form) & set(expected)), tensors)
    shapes = [
        f"{key} is {list(tensor.shape)} in the file, {list(expected[key])} in the model"
        for key, tensor in tensors.items()
        if key in expected and tensor.shape != expected[key]
    ]
    missing, unexpected = [], []
    if not shapes:
        try:
            missing, unexpected = model.load_state_dict(tensors, strict=False)
        except RuntimeError as error:
            raise CheckpointError(f"{path} does not fit the model {name!r}: {error}") from error
    problems = {"shapes differ": shapes, "missing keys": missing, "unexpected keys": unexpected}
    if said := [f"{what}: {_some(names)}" for what, names in problems.items() if names]:
        raise CheckpointError(
            f"{path} does not fit the model {name!r}: {'; '.join(said)}. Name the model that the weights are "
            "of; it is built for the image size and the classes of the data"
        )


def _unwrapped(tensors: Mapping[str, Tensor]) -> Iterator[Mapping[str, Tensor]]:
    """The tensors as they are, then without one after the other of the prefixes that all keys share."""
    yield tensors
    for prefix in WRAPPERS:
        if tensors and all(key.startswith(prefix) for key in tensors):
            yield from _unwrapped({key.removeprefix(prefix): tensor for key, tensor in tensors.items()})


def _some(names: Sequence[str]) -> str:
    """The first few of the names, and how many more there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
