"""Whole models from files: torch.export archives (.pt2), and ONNX, which has no gradients.

An archive is read without running anything that is in it. `torch.export.load` (2.13) would: it unpickles
sample inputs, tensor subclasses and custom objects without restriction, opens compiled libraries, evaluates
the text of shapes, executes that of guards, writes names into the Python that it generates, and imports what
the spec of an input names. So the archive is rewritten in memory with graph, weights and constants only, and
every text that is left must be of a kind that can only name something.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass

from atlas.errors import CheckpointError, UsageError

GRAPH = "models/model.json"
CONFIGS = {"data/weights/": "model_weights_config.json", "data/constants/": "model_constants_config.json"}
SAMPLE_INPUTS = "data/sample_inputs/model.pt"
MARKS = ("archive_format", "archive_version", ".data/version")
EMPTY: dict[str, Any] = {"metadata": {}, "guards_code": []}
"""Left out of the graph: notes on its origin, and checks of the input, which `Batched` makes."""

TENSOR = re.compile(r"(weight|tensor)_\d+")
NAME = re.compile(r"([A-Za-z_]\w*)?", re.ASCII)
DOTTED = re.compile(r"((?!__)[\w+-]*\.)*(?!__)[\w+-]*", re.ASCII)
WORDS = re.compile(r"[\w.,> -]*", re.ASCII)
TARGET = re.compile(
    r"torch\.ops\.aten\.(?!from_file\.|save\.|manual_seed\.)\w+\.\w+"
    r"|torch\.ops\.higher_order\.(wrap_with_set_grad_enabled|wrap_with_autocast|cond)"
    r"|_operator\.\w+|math\.\w+|torch\.sym_\w+",
    re.ASCII,
)
"""Arithmetic, without the operations that read or write files or move the random state."""
SIZE = re.compile(
    r"(\b([su]\d+|\d+|Symbol|Integer|Add|Mul|Pow|Min|Max|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv"
    r"|positive|nonnegative|integer|True)\b|[(),='+* -])*+",
    re.ASCII,
)
KINDS = {
    "name": NAME,
    "as_name": NAME,
    "forward_arg_names": NAME,
    "as_string": WORDS,
    "target": TARGET,
    "expr_str": SIZE,
}
"""What the text under a key of the graph may be; under any other, names with dots."""
CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict")
DTYPES = {"tensor(float)": torch.float32, "tensor(double)": torch.float64, "tensor(float16)": torch.float16}
LOCATION = re.compile(rb"\x0a\x08location\x12(?P<length>[\x01-\x7f])")
"""Where a tensor of an ONNX file names its data file: a key, and the length of the name that follows."""
ANY_BATCH = (1, torch.iinfo(torch.int64).max)


class Batched(nn.Module):
    """A model that takes batches of `sizes` (least, most) only, made to take any.

    Larger batches are split; smaller ones are filled up with copies of an image, whose outputs are dropped.
    `shape` is that of an image, with None where any size will do. `call` gets images in `dtype`, or in the
    precision to which this module is moved.
    """

    like: Tensor

    def __init__(
        self,
        call: Callable[[Tensor], Tensor],
        shape: Sequence[int | None],
        dtype: torch.dtype,
        sizes: tuple[int, int],
        sha256: str,
    ) -> None:
        super().__init__()
        self.call, self.shape, self.sha256 = call, tuple(shape), sha256
        self.least, self.most = sizes
        self.register_buffer("like", torch.empty(0, dtype=dtype), persistent=False)

    def extra_repr(self) -> str:
        return f"sha256={self.sha256}"  # so that two models whose layers are not shown differ in their text

    def train(self, mode: bool = True) -> Self:
        """Its own flag alone: a model from a file keeps the mode in which it was written."""
        self.training = mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        got = x.shape[1:]
        if len(got) != len(self.shape) or any(
            a not in (None, b) for a, b in zip(self.shape, got, strict=True)
        ):
            shape = ", ".join("any" if size is None else str(size) for size in self.shape)
            raise UsageError(f"images for this model must be [{shape}], got {list(got)}")
        parts = torch.split(x.to(self.like.dtype), self.most)
        return torch.cat([self._predict(part) for part in parts]).to(x.dtype)

    def _predict(self, x: Tensor) -> Tensor:
        filler = x[:1].expand(max(0, self.least - len(x)), *x.shape[1:])
        return self.call(torch.cat([x, filler]) if len(filler) else x)[: len(x)]


def load_exported(path: Path, device: torch.device | str = "cpu") -> Batched:
    """The model of an archive by `torch.export.save`, with gradients, in the mode of its export."""
    data = path.read_bytes()
    try:
        program = torch.export.load(_plain(path, data))
    except CheckpointError:
        raise
    except Exception as error:  # whatever torch makes of a damaged archive
        raise CheckpointError(
            f"{path} is not a torch.export archive that torch {torch.__version__} can load: {error}"
        ) from error
    inputs = [n for n in program.graph.nodes if n.name in program.graph_signature.user_inputs]
    if len(inputs) != 1 or not isinstance(inputs[0].meta.get("val"), Tensor):
        raise CheckpointError(f"{path} must take one tensor of images, got {len(inputs)} inputs")
    if not program.call_spec.out_spec.is_leaf():
        raise CheckpointError(
            f"{path} must return one tensor of logits, got a {program.call_spec.out_spec.type}"
        )
    image = inputs[0].meta["val"]
    batch, *shape = image.shape
    if isinstance(batch, int):
        sizes = batch, batch
    elif batch.node.expr.is_symbol:
        allowed = program.range_constraints[batch.node.expr]
        sizes = max(1, int(allowed.lower)), int(min(allowed.upper, ANY_BATCH[1]))
    else:
        raise CheckpointError(
            f"{path} must take batches of a fixed size or of a range, got {batch} images: export it with "
            'dynamic_shapes=({0: torch.export.Dim("batch")},)'
        )
    if torch.device(device).type != "cpu":
        program = move_to_device_pass(program, device)
    fixed = [size if isinstance(size, int) else None for size in shape]
    return Batched(program.module(), fixed, image.dtype, sizes, hashlib.sha256(data).hexdigest())


def _plain(path: Path, data: bytes) -> io.BytesIO:
    """The archive, rewritten with what a model is made of and nothing that could run."""
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        if sum(record.file_size for record in old.infolist()) > len(data):  # torch compresses nothing
            raise CheckpointError(f"{path} would unpack to more than its own {len(data):,} bytes: refused")
        root = old.namelist()[0].partition("/")[0]
        records = {name: old.read(f"{root}/{name}") for name in (GRAPH, *MARKS)}
        for folder, config in CONFIGS.items():
            records[folder + config] = old.read(f"{root}/{folder}{config}")
            for name in _tensors(path, records[folder + config]):
                records[folder + name] = old.read(f"{root}/{folder}{name}")
    records[GRAPH] = json.dumps(_checked(path, json.loads(records[GRAPH]))).encode()
    records[SAMPLE_INPUTS] = b""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as new:
        for name, record in records.items():
            new.writestr(f"model/{name}", record)
    buffer.seek(0)
    return buffer


def _tensors(path: Path, config: bytes) -> set[str]:
    """The files of the tensors that a table lists, which must be plain tensors."""
    entries = _checked(path, json.loads(config))["config"].values()
    for entry in entries:
        if entry["use_pickle"] is not False or not TENSOR.fullmatch(entry["path_name"]):
            raise CheckpointError(
                f"{path} must hold plain tensors only, got {entry['path_name']!r}, a pickled object that "
                "could run anything when loaded: if you trust it, load it yourself and pass the module"
            )
    return {entry["path_name"] for entry in entries}


def _checked(path: Path, value: Any, key: str = "") -> Any:
    """The value as it was, without what is left out; text that is more than a name is refused."""
    if isinstance(value, dict):
        for name in value:
            _check_text(path, "expr_str" if key == "range_constraints" else "", name)
        return {k: EMPTY[k] if k in EMPTY else _checked(path, v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_checked(path, v, key) for v in value]
    if isinstance(value, str):
        _check_text(path, key, value)
    return value


def _check_text(path: Path, key: str, text: str) -> None:
    spec = key in ("in_spec", "out_spec")
    if not (_is_plain(json.loads(text)[1]) if spec else KINDS.get(key, DOTTED).fullmatch(text)):
        raise CheckpointError(
            f"{path} has {text[:80]!r} as {key or 'a name'}, which no model needs and which could run when "
            "loaded: if you trust it, load it yourself and pass the module"
        )


def _is_plain(spec: dict[str, Any]) -> bool:
    """Whether an input or output is made of tuples, lists and dicts by name; other types are imported."""
    context = spec["context"] or "null"
    names = json.loads(context) if isinstance(context, str) else context
    return (
        spec["type"] in CONTAINERS
        and (names is None or isinstance(names, list))
        and all(isinstance(name, str) for name in names or ())
        and all(map(_is_plain, spec["children_spec"]))
    )


def load_onnx(path: Path, device: torch.device | str = "cpu") -> Batched:
    """The model of an ONNX file with one input, images [B, ...], and one output, logits [B, C]."""
    try:
        onnxruntime = import_module("onnxruntime")
    except ImportError as error:
        raise UsageError(
            f"{path}: ONNX files need onnxruntime ({error}): pip install 'atlas-robust[onnx]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    device = torch.device(device)
    cuda = device.type == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    fast = [("CUDAExecutionProvider", {"device_id": device.index or 0})] if cuda else []
    try:
        session = onnxruntime.InferenceSession(str(path), options, [*fast, ("CPUExecutionProvider", {})])
    except Exception as error:  # its errors have no common base
        raise CheckpointError(f"{path} is not an ONNX file that onnxruntime can load: {error}") from error
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1 or len(outputs) != 1:
        names = [", ".join(value.name for value in values) for values in (inputs, outputs)]
        raise CheckpointError(
            f"{path} must have one input of images and one output of logits, got inputs {names[0]} and "
            f"outputs {names[1]}: export it again"
        )
    name, kind, shape = inputs[0].name, inputs[0].type, inputs[0].shape
    if kind not in DTYPES or len(shape) < 2:
        raise CheckpointError(
            f"{path} must take floats [B, C, H, W] in [0, 1], got {kind} {shape}: export it again"
        )
    dtype = DTYPES[kind]

    def predict(x: Tensor) -> Tensor:
        (logits,) = session.run(None, {name: x.detach().to("cpu", dtype).contiguous().numpy()})
        return torch.from_numpy(logits).to(x.device)

    batch, *image = (size if isinstance(size, int) else None for size in shape)
    sizes = ANY_BATCH if batch is None else (batch, batch)
    return Batched(predict, image, dtype, sizes, _sha256_with_data(path))


def _sha256_with_data(path: Path) -> str:
    """Of the file, and of the files beside it that it names as the place of a tensor."""
    data = path.read_bytes()
    digest = hashlib.sha256(data)
    spans = [(match.end(), match.end() + match["length"][0]) for match in LOCATION.finditer(data)]
    for file in sorted({path.parent / data[a:b].decode(errors="replace") for a, b in spans}):
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()
