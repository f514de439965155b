"""Models by what the command line names: weights, an archive, an ONNX file or a factory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from atlas.errors import CheckpointError, UsageError
from atlas.models import build
from atlas.models.code import user_code
from atlas.models.exported import Batched, load_exported, load_onnx
from atlas.models.normalize import Normalization, normalized
from atlas.models.user_model import Output
from atlas.models.weights import SUFFIXES, load_weights, normalization_of, read_weights

WHOLE = (".pt2", ".onnx")
KINDS = (
    "weights (.safetensors, .pt or .pth, with the model's name), a torch.export archive (.pt2), an ONNX file "
    "(.onnx) or module.path:factory"
)


def load(
    what: str | Path,
    *,
    name: str | None = None,
    num_classes: int = 10,
    shape: Sequence[int] = (1, 28, 28),
    normalize: str | Normalization | None = None,
    output: str | None = None,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """The model that `what` names, in eval mode: weights, a torch.export archive, an ONNX file or a factory.

    It maps images [B, C, H, W] in [0, 1] to logits [B, classes], for any B. `name` is the model that weights
    are of, `normalize` is for a model that does not normalise, and `output` is the place or the key of the
    logits among several outputs. For a run's folder use `atlas.load_model`.
    """
    path, kind, device = Path(what), Path(what).suffix.lower(), torch.device(device)
    if kind in (*SUFFIXES, *WHOLE):
        _check_readable(path)
    elif ":" not in str(what):
        raise UsageError(f"{what} is not a model; expected a run's folder, {KINDS}")
    if kind in SUFFIXES and name is None:
        raise UsageError(f"{what} holds weights: name their model with --model, see `atlas models`")
    if kind not in SUFFIXES and name is not None:
        raise UsageError(f"the model name {name!r} is for weights files; {what} is a whole model: omit it")
    if kind in WHOLE and output is not None:
        raise UsageError(f"{what} is a whole model: export it with the logits as its only output")

    model: nn.Module
    if kind in WHOLE:
        model = load_exported(path, device) if kind == ".pt2" else load_onnx(path, device)
        if normalize is not None:
            model = normalized(model, normalize, shape[0])
    elif kind in SUFFIXES:
        tensors = read_weights(path)
        own = normalization_of(tensors)
        if own is not None and normalize is not None:
            raise UsageError(
                f"{path} already holds a normalisation, mean {own[0]} and std {own[1]}: omit yours"
            )
        model = build(str(name), num_classes, shape, own or normalize)
        load_weights(model, tensors, path, str(name))
    else:
        model = build(str(what), num_classes, shape, normalize)
    return (model if output is None else Output(model, output)).to(device).eval()


def _check_readable(path: Path) -> None:
    if not path.is_file():
        raise UsageError(f"there is no file {path}; expected {KINDS}")
    try:
        path.open("rb").close()  # libraries report a file that they may not read as missing or damaged
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def fingerprint(model: nn.Module) -> str:
    """The sha256 of a model's file, or of its layers, weights, buffers and the user's code that it runs.

    Of the code too, because the fix of a masked gradient may change nothing else.
    """
    if isinstance(model, Batched):
        return model.sha256
    digest = hashlib.sha256(str(model).encode())
    for text in sorted(set(user_code(model).values())):
        digest.update(text.encode())
    for name, tensor in {**model.state_dict(), **dict(model.named_buffers())}.items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
