"""Models by `torch.export`: .pt2 archives, read without running anything that is in them.

`torch.export.load` (2.13) would run it. It unpickles sample inputs, tensor subclasses and custom objects with
no restriction and opens compiled libraries; it evaluates the text of shapes, executes that of guards, writes
names into the Python that it generates, and imports what the spec of an input names. So an archive is written
anew in memory, with only what a model is made of: graph, weights, constants. Sample inputs, guards, notes and
all else are left out, and every text that is left must be of a kind that can do nothing but name. What stays
is what any model can do: compute, take all memory, and find the errors of torch's own operations.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from atlas.errors import CheckpointError
from atlas.models.batched import Batched

GRAPH = "models/model.json"
WEIGHTS, CONSTANTS = "data/weights/", "data/constants/"
CONFIGS = {WEIGHTS: "model_weights_config.json", CONSTANTS: "model_constants_config.json"}
SAMPLE_INPUTS = "data/sample_inputs/model.pt"
MARKS = ("archive_format", "archive_version", ".data/version")
EMPTY: dict[str, Any] = {"metadata": {}, "guards_code": []}
"""Left out of the graph: notes on where it comes from, and checks of the input, which are ours to make."""

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
KINDS = {"name": NAME, "as_name": NAME, "forward_arg_names": NAME} | {
    "as_string": WORDS,
    "target": TARGET,
    "expr_str": SIZE,
}
"""What the text under a key of the graph may be; under any other, names with dots."""
CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict")


def load_exported(path: Path, device: torch.device | str = "cpu") -> Batched:
    """The model of an archive by `torch.export.save`, with gradients, in the mode of its export."""
    data = path.read_bytes()
    try:
        program = torch.export.load(_plain(path, data))
    except CheckpointError:
        raise
    except Exception as error:  # whatever torch makes of a damaged archive
        raise CheckpointError(
            f"{path} is no archive by torch.export.save that torch {torch.__version__} can load: {error}"
        ) from error
    return _batched(path, program, torch.device(device), hashlib.sha256(data).hexdigest())


def _batched(path: Path, program: ExportedProgram, device: torch.device, sha256: str) -> Batched:
    inputs = [n for n in program.graph.nodes if n.name in program.graph_signature.user_inputs]
    if len(inputs) != 1 or not isinstance(inputs[0].meta.get("val"), torch.Tensor):
        raise CheckpointError(f"{path} takes {len(inputs)} inputs; wanted one tensor of images: export it so")
    if not program.call_spec.out_spec.is_leaf():
        raise CheckpointError(
            f"{path} gives a {program.call_spec.out_spec.type}; wanted one tensor of logits"
        )
    if device.type != "cpu":
        program = move_to_device_pass(program, device)
    image = inputs[0].meta["val"]
    batch, *shape = image.shape
    fixed = tuple(size if isinstance(size, int) else None for size in shape)
    return Batched(program.module(), fixed, image.dtype, _sizes(path, program, batch), sha256)


def _sizes(path: Path, program: ExportedProgram, batch: int | torch.SymInt) -> tuple[int, int]:
    """The least and the largest batch that the program takes."""
    if isinstance(batch, int):
        return batch, batch
    if not batch.node.expr.is_symbol:
        raise CheckpointError(
            f"{path} takes batches of {batch} images; wanted a fixed size or any in a range: export it with "
            'dynamic_shapes=({0: torch.export.Dim("batch")},)'
        )
    allowed = program.range_constraints[batch.node.expr]
    return max(1, int(allowed.lower)), int(min(allowed.upper, torch.iinfo(torch.int64).max))


def _plain(path: Path, data: bytes) -> io.BytesIO:
    """The archive, written anew with what a model is made of and nothing that could run."""
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        if sum(record.file_size for record in old.infolist()) > len(data):  # torch compresses nothing
            raise CheckpointError(f"{path} would unpack to more than its own {len(data):,} bytes: refused")
        root = old.namelist()[0].partition("/")[0]
        records = {name: old.read(f"{root}/{name}") for name in (GRAPH, *MARKS)}
        for folder, config in CONFIGS.items():
            records[folder + config] = old.read(f"{root}/{folder}{config}")
            for name in _tensors(path, records[folder + config]):
                records[folder + name] = old.read(f"{root}/{folder}{name}")
    graph = _checked(path, json.loads(records[GRAPH]))
    records |= {GRAPH: json.dumps(graph).encode(), SAMPLE_INPUTS: b""}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as new:
        for name, record in records.items():
            new.writestr(f"model/{name}", record)
    buffer.seek(0)
    return buffer


def _tensors(path: Path, config: bytes) -> set[str]:
    """The files of the tensors that a table lists, none of which may be pickled or no tensor."""
    entries = _checked(path, json.loads(config))["config"].values()
    for entry in entries:
        if entry["use_pickle"] is not False or not TENSOR.fullmatch(entry["path_name"]):
            raise CheckpointError(
                f"{path} holds {entry['path_name']!r}, a pickled object that could run anything when it is "
                "loaded; wanted plain tensors only: load it yourself if you trust it, and give the module"
            )
    return {entry["path_name"] for entry in entries}


def _checked(path: Path, value: Any, key: str = "") -> Any:
    """The value as it was, without what is left out; text that is more than a name is refused."""
    if isinstance(value, dict):
        for name in value:
            _check_text(path, "expr_str" if key == "range_constraints" else "", name)
        return {
            name: EMPTY.get(name) if name in EMPTY else _checked(path, v, name) for name, v in value.items()
        }
    if isinstance(value, list):
        return [_checked(path, v, key) for v in value]
    if isinstance(value, str):
        _check_text(path, key, value)
    return value


def _check_text(path: Path, key: str, text: str) -> None:
    if key in ("in_spec", "out_spec"):
        fine = _is_plain(json.loads(text)[1])
    else:
        fine = bool(KINDS.get(key, DOTTED).fullmatch(text))
    if not fine:
        raise CheckpointError(
            f"{path} has {text[:80]!r} as {key or 'a name'}, which no model needs and which could run when "
            "loaded: load it yourself if you trust it, and give the module"
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
