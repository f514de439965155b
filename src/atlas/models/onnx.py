"""Models in ONNX files, by onnxruntime: they can be asked, and have no gradients."""

from __future__ import annotations

import hashlib
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atlas.errors import CheckpointError, UsageError
from atlas.models.batched import Batched

DTYPES = {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(float16)": torch.float16,
}
LOCATION = re.compile(rb"\x0a\x08location\x12(?P<length>[\x01-\x7f])")
"""How a tensor begins to tell its file, in ONNX's form: a key, and the length of a name that follows."""
ANY_BATCH = (1, torch.iinfo(torch.int64).max)


def load_onnx(path: Path, device: torch.device | str = "cpu") -> Batched:
    """The model of an ONNX file with one input, images [B, ...], and one output, logits [B, C]."""
    session = _session(path, torch.device(device))
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1 or len(outputs) != 1:
        names = [", ".join(value.name for value in values) for values in (inputs, outputs)]
        raise CheckpointError(
            f"{path} has inputs {names[0]} and outputs {names[1]}; wanted one input of images and one output "
            "of logits: export it so"
        )
    name, kind, shape = inputs[0].name, inputs[0].type, inputs[0].shape
    if kind not in DTYPES or len(shape) < 2:
        raise CheckpointError(
            f"{path} takes {kind} {shape}; wanted floats [B, C, H, W] in [0, 1]: export it so"
        )

    dtype = DTYPES[kind]

    def predict(x: Tensor) -> Tensor:
        (logits,) = session.run(None, {name: x.detach().to("cpu", dtype).contiguous().numpy()})
        return torch.from_numpy(logits).to(x.device)

    batch, *image = (size if isinstance(size, int) else None for size in shape)
    return Batched(predict, image, dtype, ANY_BATCH if batch is None else (batch, batch), _sha256(path))


def _session(path: Path, device: torch.device) -> Any:
    try:
        onnxruntime = import_module("onnxruntime")
    except ImportError as error:
        raise UsageError(
            f"{path}: ONNX files need onnxruntime ({error}): pip install 'atlas-robust[onnx]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    fast = [("CUDAExecutionProvider", {"device_id": device.index or 0})] if device.type == "cuda" else []
    known = onnxruntime.get_available_providers()
    providers = [each for each in [*fast, ("CPUExecutionProvider", {})] if each[0] in known]
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # its errors have no common base
        raise CheckpointError(f"{path} is no ONNX file that onnxruntime can load: {error}") from error


def _sha256(path: Path) -> str:
    """Of the file, and of the files beside it in which it keeps weights."""
    data = path.read_bytes()
    digest = hashlib.sha256(data)
    for file in sorted(_beside(path, data)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _beside(path: Path, data: bytes) -> set[Path]:
    """The files that the model names as the place of a tensor."""
    found = set()
    for match in LOCATION.finditer(data):
        (length,) = match["length"]
        name = data[match.end() : match.end() + length].decode(errors="replace")
        found.add(path.parent / name)
    return {file for file in found if file.is_file()}
