"""Weights from files that other programs wrote: safetensors, and state dicts saved with `torch.save`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

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

    Raises:
        UsageError: there is no such file, or it has another kind of name.
        CheckpointError: the file cannot be read, or holds more than weights.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"weights must be in a file called *{', *'.join(SUFFIXES)}, got {path}")
    if not path.is_file():
        raise UsageError(f"there is no weights file {path}")
    try:
        with path.open("rb") as file:  # safetensors reports every file that it cannot open as missing
            if path.suffix.lower() == ".safetensors":
                return load_file(path)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about protocols and TorchScript; errors say it again
                found = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise _refused(path, str(error)) from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except Exception as error:  # a damaged archive or pickle can raise anything
        if "TorchScript" in str(error):
            raise CheckpointError(
                f"{path} is a TorchScript archive, expected weights: save model.state_dict(), or export the "
                "model with torch.export.save(torch.export.export(model, (x,)), 'model.pt2')"
            ) from error
        first = str(error).partition(".")[0]
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {first}") from error
    return _state_dict(path, found)


def _refused(path: Path, message: str) -> CheckpointError:
    """The error for a pickle that names classes or functions, or is none of torch's."""
    named = re.search(r"GLOBAL (\S+)", message)
    if named is None:
        return CheckpointError(f"{path} cannot be read: it is damaged, or was not written by torch.save")
    return CheckpointError(
        f"{path} holds {named[1]} beside tensors, and loading that could run code, so it was not loaded. If "
        "you trust the file, load it yourself with torch.load(..., weights_only=False) and save only its "
        "weights: torch.save(model.state_dict(), path)"
    )


def _state_dict(path: Path, found: Any) -> dict[str, Tensor]:
    """The state dict itself, or under one of the usual keys."""
    for table in (found, *(found.get(key) for key in INSIDE if isinstance(found, Mapping))):
        if isinstance(table, Mapping) and table and all(isinstance(v, Tensor) for v in table.values()):
            return {str(key): tensor for key, tensor in table.items()}
    if isinstance(found, Mapping):
        holds = f"keys {_some([*map(str, found)])}" if found else "an empty dict"
    else:
        holds = f"a {type(found).__name__}"
    raise CheckpointError(
        f"{path} holds {holds}, expected a state dict, or one under {', '.join(map(repr, INSIDE))}: save it "
        "with torch.save(model.state_dict(), path)"
    )


def normalization_of(tensors: Mapping[str, Tensor]) -> Normalization | None:
    """Mean and std of the normalisation layer in the weights of a run; None where they have none."""
    for form in _unwrapped(tensors):
        if {"normalize.mean", "normalize.std"} <= set(form):
            return form["normalize.mean"].flatten().tolist(), form["normalize.std"].flatten().tolist()
    return None


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], path: Path, name: str) -> None:
    """Fill the model called `name` with the tensors of the file.

    Where `build` has put a normalisation before the network and the file has none, it fills the network.

    Raises:
        CheckpointError: keys are missing or unexpected, or shapes differ.
    """
    if [*dict(model.named_children())] == ["normalize", "net"] and normalization_of(tensors) is None:
        model = model.get_submodule("net")
    wanted = {key: tensor.shape for key, tensor in model.state_dict().items()}
    tensors = next((form for form in _unwrapped(tensors) if set(form) & set(wanted)), tensors)
    wrong = [key for key, tensor in tensors.items() if key in wanted and tensor.shape != wanted[key]]
    if wrong:
        missing, unexpected = [k for k in wanted if k not in tensors], [k for k in tensors if k not in wanted]
    else:
        try:
            missing, unexpected = model.load_state_dict(tensors, strict=False)
        except RuntimeError as error:
            raise CheckpointError(f"{path} does not fit the model {name!r}: {error}") from error
    shapes = [f"{k} is {list(tensors[k].shape)} in the file, {list(wanted[k])} in the model" for k in wrong]
    problems = {"shapes differ": shapes, "missing keys": missing, "unexpected keys": unexpected}
    said = [f"{what}: {_some(names)}" for what, names in problems.items() if names]
    if said:
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
