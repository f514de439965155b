"""ONNX files: the outputs of the same network in torch, any batch, and no gradients."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from atlas.attacks import PGD
from atlas.attacks.gradients import check_gradients, has_gradients
from atlas.errors import CheckpointError, UsageError
from atlas.models.exported import load_onnx

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
RANDOM = np.random.default_rng(0)
W1, W2 = RANDOM.normal(size=(48, 16)) / 7, RANDOM.normal(size=(16, 5)) / 4


def wanted(x: Tensor) -> Tensor:
    hidden = (x.double().flatten(1) @ torch.from_numpy(W1)).relu()
    return hidden @ torch.from_numpy(W2)


def write(
    path: Path, batch: int | str = "batch", kind: str = "float32", extra: str = "", outside: str = ""
) -> Path:
    """Flatten, linear, ReLU, linear, for images [batch, 3, 4, 4]; `extra` adds an input or an output."""
    make, dtype = onnx.helper, getattr(onnx.TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}[kind])
    nodes = [
        make.make_node("Flatten", ["x"], ["flat"]),
        make.make_node("MatMul", ["flat", "w1"], ["before"]),
        make.make_node("Relu", ["before"], ["hidden"]),
        make.make_node("MatMul", ["hidden", "w2"], ["y"]),
    ]
    inputs = [make.make_tensor_value_info("x", dtype, [batch, 3, 4, 4])]
    outputs = [make.make_tensor_value_info("y", dtype, [batch, 5])]
    if extra == "output":
        outputs.append(make.make_tensor_value_info("hidden", dtype, [batch, 16]))
    if extra == "input":
        inputs.append(make.make_tensor_value_info("z", dtype, [1]))
    weights = [onnx.numpy_helper.from_array(w.astype(kind), name) for name, w in (("w1", W1), ("w2", W2))]
    graph = make.make_graph(nodes, "net", inputs, outputs, weights)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    rest: dict[str, Any] = {"save_as_external_data": True, "location": outside, "size_threshold": 0}
    onnx.save_model(model, str(path), **(rest if outside else {}))
    return path


@pytest.mark.parametrize("batch", ["batch", 4, 1])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_outputs_are_those_of_the_network_in_any_batch(batch: int | str, kind: str, tmp_path: Path) -> None:
    model = load_onnx(write(tmp_path / "net.onnx", batch, kind))
    for size in (1, 4, 11):
        x = torch.rand(size, 3, 4, 4)
        assert model(x).dtype == torch.float32
        torch.testing.assert_close(model(x).double(), wanted(x), rtol=1e-5, atol=1e-5)
    upside_down = torch.rand(3, 4, 4, 6).permute(3, 0, 1, 2)
    torch.testing.assert_close(model(upside_down).double(), wanted(upside_down), rtol=1e-5, atol=1e-5)


def test_it_has_no_gradients_and_says_so(tmp_path: Path) -> None:
    model, x = load_onnx(write(tmp_path / "net.onnx")), torch.rand(2, 3, 4, 4)
    assert not has_gradients(model, x)
    with pytest.raises(UsageError, match="PGD needs gradients and the model gives none"):
        check_gradients(model, PGD(), x)


def test_a_copy_in_bfloat16_still_asks_in_the_files_own_precision(tmp_path: Path) -> None:
    model, x = load_onnx(write(tmp_path / "net.onnx")), torch.rand(2, 3, 4, 4)
    fast = copy.deepcopy(model).to(torch.bfloat16)
    torch.testing.assert_close(fast(x), model(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("extra", "message"), [("input", "inputs x, z and outputs y"), ("output", "outputs y, hidden")]
)
def test_what_is_no_classifier_is_refused(extra: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"must have one input of images.*{message}"):
        load_onnx(write(tmp_path / "net.onnx", extra=extra))


@pytest.mark.parametrize("data", [b"", b"not a graph"])
def test_a_damaged_file_is_named(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"bad\.onnx is not an ONNX file that onnxruntime can load"):
        load_onnx(tmp_path / "bad.onnx")


@pytest.mark.parametrize("outside", ["", "net.weights", "below/net.weights"])
def test_the_fingerprint_is_of_the_weights_wherever_they_are(outside: str, tmp_path: Path) -> None:
    prints = []
    for change in (0.0, 0.0, 1.0):
        (tmp_path / "below").mkdir(exist_ok=True)
        for name in ("neighbour.txt", "flat", "x"):  # the last two are names in the model
            (tmp_path / name).write_text(str(len(prints)))
        for old in tmp_path.rglob("net.*"):
            old.unlink()
        W2[0, 0] += change
        prints.append(load_onnx(write(tmp_path / "net.onnx", outside=outside)).sha256)
        W2[0, 0] -= change
    assert prints[0] == prints[1] != prints[2]
    assert bool(outside) == any(path.name == "net.weights" for path in tmp_path.rglob("*"))


def test_without_onnxruntime_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"pip install 'atlas-robust\[onnx\]'"):
        load_onnx(write(tmp_path / "net.onnx"))
