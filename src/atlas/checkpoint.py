"""Tensors in files with a checksum.

Weights and states are safetensors with JSON beside the tensors; nothing pickled is read here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from atlas.errors import CheckpointError, DamagedError, is_out_of_memory
from atlas.files import write_atomic

LABEL = "atlas"
"""The one entry in the header of our safetensors."""
FORMAT = 1
"""Of these files. It changes when what they hold can no longer be read as before."""
_DAMAGE = (SafetensorError, ValueError, TypeError, AttributeError, RuntimeError)
"""What a file that is not ours, or no longer, makes its readers raise."""
_UNREADABLE = ("unable to open file", "unable to mmap")
"""How a RuntimeError of torch starts that is about the disk and not about the contents of the file."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Tensors and a JSON-able table in one safetensors file with a checksum over both."""
    plain = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in tensors.items()}
    text = json.dumps(about)
    # One entry, because safetensors writes several in a random order, and equal contents make equal files.
    label = json.dumps({"about": text, "sha256": digest(plain, text), "format": FORMAT}, sort_keys=True)
    write_atomic(path, to_bytes(plain, metadata={LABEL: label}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the table of a file by `save_tensors`, verified."""
    try:
        # safetensors reports every file that it cannot open as missing, whatever the reason.
        with path.open("rb"), safe_open(path, framework="pt") as file:
            label = json.loads((file.metadata() or {}).get(LABEL, "{}"))
            # Copies, because the file may be replaced while they are in use.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        text, expected, kind = label["about"], label["sha256"], label.get("format", FORMAT)
        found = digest(tensors, text)
    except KeyError:
        raise DamagedError(f"{path} was not written by atlas: it has no checksum") from None
    except (OSError, MemoryError, *_DAMAGE) as error:
        unreadable = isinstance(error, OSError) or str(error).startswith(_UNREADABLE)
        if unreadable or is_out_of_memory(error):  # the file itself may be intact
            raise CheckpointError(f"{path} cannot be read now: {error}") from error
        raise DamagedError(f"{path} cannot be read: {error}") from error
    if kind != FORMAT:
        raise CheckpointError(
            f"{path} is of format {str(kind)[:20]}, and this version of atlas reads format {FORMAT}: use the "
            "version that wrote it"
        )
    if expected != found:
        raise DamagedError(f"{path} is damaged: expected sha256 {str(expected)[:64]}, found {found}")
    try:
        return tensors, dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:  # under a good checksum
        raise DamagedError(f"{path} cannot be read: its table is none: {error}") from error


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """The sha256 of a text and of tensors with their names, types and shapes."""
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def same_tensors(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two tables hold equal tensors under equal names, on whatever device."""
    return one.keys() == other.keys() and all(torch.equal(one[k].cpu(), other[k].cpu()) for k in one)
