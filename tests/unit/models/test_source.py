"""What a model can be: weights, archives, factories; with a fingerprint, and errors that say what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from atlas.attacks.gradients import has_gradients
from atlas.checkpoint import load_tensors, save_tensors
from atlas.errors import CheckpointError, UsageError
from atlas.models import build
from atlas.models.source import fingerprint, load

X = torch.rand(3, 1, 28, 28)
FACTORY = """
from torch import nn

def net(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, num_classes))
"""
SEVERAL = """
import torch

class Several(torch.nn.Module):
    def __init__(self, named):
        super().__init__()
        self.flat, self.linear, self.named = torch.nn.Flatten(), torch.nn.Linear(784, 10), named

    def forward(self, x):
        found = {"loss": x.sum(), "logits": self.linear(self.flat(x))}
        return found if self.named else tuple(found.values())


def pair():
    return Several(False)


def named():
    return Several(True)
"""
STATS = ((0.13,), (0.31,))


def weights(path: Path, model: nn.Module) -> Path:
    save_file(model.state_dict(), path)
    return path


def test_weights_of_a_named_model(tmp_path: Path) -> None:
    net = build("cnn-small", seed=3)
    loaded = load(weights(tmp_path / "w.safetensors", net), name="cnn-small")
    assert torch.equal(loaded(X), net(X))
    assert not any(m.training for m in loaded.modules())


@pytest.mark.parametrize("inside", [False, True], ids=["given beside them", "in the file"])
def test_weights_with_a_normalisation(inside: bool, tmp_path: Path) -> None:
    net = build("cnn-small", normalize=STATS, seed=3)
    path = weights(tmp_path / "w.safetensors", net if inside else net.get_submodule("net"))
    loaded = load(str(path), name="cnn-small", normalize=None if inside else STATS)
    torch.testing.assert_close(loaded(X), net(X))
    assert fingerprint(loaded) == fingerprint(net)
    if inside:
        with pytest.raises(UsageError, match="already holds a normalisation"):
            load(path, name="cnn-small", normalize=STATS)


@pytest.mark.usefixtures("in_its_folder")
def test_a_factory_and_weights_for_one() -> None:
    loaded = load("mine_source:net", num_classes=4)
    assert loaded(X).shape == (3, 4)
    trained = load("mine_source:net", num_classes=4)
    nn.init.ones_(trained[1].weight)
    again = load(weights(Path("w.safetensors"), trained), name="mine_source:net", num_classes=4)
    assert torch.equal(again(X), trained(X))
    assert fingerprint(again) != fingerprint(loaded)
    assert fingerprint(again) == fingerprint(trained)


@pytest.mark.usefixtures("in_its_folder")
@pytest.mark.parametrize(("factory", "output"), [("pair", "1"), ("named", "logits")])
def test_one_of_several_outputs(factory: str, output: str) -> None:
    Path("mine_source.py").write_text(FACTORY + SEVERAL)
    whole, picked = load(f"mine_source:{factory}"), load(f"mine_source:{factory}", output=output)
    expected: Any = whole(X)
    assert torch.equal(picked(X), expected[int(output) if output.isdecimal() else output])
    assert fingerprint(picked) != fingerprint(whole)
    with pytest.raises(UsageError, match="the model has no output 'logit'"):
        load(f"mine_source:{factory}", output="logit")(X)


@pytest.fixture
def in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "mine_source", raising=False)
    Path("mine_source.py").write_text(FACTORY)


def test_an_archive(tmp_path: Path) -> None:
    net = build("cnn-small", seed=3).eval()
    torch.export.save(torch.export.export(net, (X,)), tmp_path / "net.pt2")
    loaded = load(tmp_path / "net.pt2")
    torch.testing.assert_close(loaded(X), net(X))
    assert len(fingerprint(loaded)) == 64
    behind = load(tmp_path / "net.pt2", normalize=STATS)
    torch.testing.assert_close(behind(X), net((X - STATS[0][0]) / STATS[1][0]))
    assert fingerprint(behind) != fingerprint(loaded)
    with pytest.raises(UsageError, match="model name 'cnn' is for weights files"):
        load(tmp_path / "net.pt2", name="cnn")


def test_an_onnx_file_has_no_gradients(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    values = [
        make.make_tensor_value_info(name, kind, shape)
        for name, shape in (("x", ["b", 1, 28, 28]), ("y", ["b", 784]))
    ]
    graph = make.make_graph([make.make_node("Flatten", ["x"], ["y"])], "net", values[:1], values[1:])
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, str(tmp_path / "net.onnx"))
    loaded = load(tmp_path / "net.onnx")
    assert torch.equal(loaded(X), X.flatten(1))
    assert not has_gradients(loaded, X)


def test_a_fingerprint_is_of_layers_weights_and_buffers() -> None:
    def net(activation: nn.Module, seed: int = 0, mean: float = 0.0) -> nn.Module:
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Linear(3, 3), activation, nn.BatchNorm1d(3))
        nn.init.constant_(made[2].running_mean, mean)
        return made

    prints = [fingerprint(net(nn.ReLU())), fingerprint(net(nn.GELU())), fingerprint(net(nn.ReLU(), seed=1))]
    prints += [fingerprint(net(nn.ReLU(), mean=1.0)), fingerprint(net(nn.ReLU()).double())]
    assert len(set(prints)) == 5
    assert fingerprint(net(nn.ReLU())) == prints[0]
    assert all(len(text) == 64 for text in prints)
    unsaved = net(nn.ReLU())
    unsaved.register_buffer("levels", torch.tensor(8.0), persistent=False)
    assert fingerprint(unsaved) != prints[0]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("torch:tensor", "no signature found for builtin .*; it must be a function or class"),
        ("net.pth", r"there is no file net\.pth; expected weights"),
        ("nowhere.pt2", r"there is no file nowhere\.pt2; expected weights"),
        ("nowhere.onnx", "there is no file"),
        ("nowhere.safetensors", "there is no file"),
        ("cnn-small", "cnn-small is not a model; expected a run's folder, weights"),
        ("no_such_module:net", "importing 'no_such_module' failed"),
    ],
)
def test_what_is_no_model_is_told_what_would_be(what: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(what)


@pytest.mark.parametrize("name", ["a.safetensors", "a.pth", "a.pt2", "a.onnx", "ours.safetensors"])
def test_a_file_that_may_not_be_read_is_not_called_missing_or_damaged(name: str) -> None:
    with TemporaryDirectory() as folder:  # which pytest's own would hide from other users
        path = Path(folder, name)
        save_tensors(path, {"a": torch.ones(2)}, {})
        path.chmod(0)
        model = "cnn-small" if name in ("a.safetensors", "a.pth") else None
        Path(folder).chmod(0o755)
        with pytest.raises(CheckpointError, match=r"cannot be read.*Permission denied") as error:
            as_a_user(lambda: load_tensors(path) if "ours" in name else load(path, name=model))
        assert "damaged" not in str(error.value)


def as_a_user(act: Callable[[], object]) -> None:
    """Without the rights of root, who may read everything."""
    before = os.geteuid()
    os.seteuid(before or 65534)
    try:
        act()
    finally:
        os.seteuid(before)


def test_weights_that_do_not_say_whose_they_are_or_do_not_fit(tmp_path: Path) -> None:
    path = weights(tmp_path / "w.safetensors", build("cnn-small"))
    with pytest.raises(UsageError, match=r"holds weights: name their model with --model"):
        load(path)
    with pytest.raises(CheckpointError, match=r"w\.safetensors does not fit the model 'cnn': shapes differ"):
        load(path, name="cnn")
    with pytest.raises(UsageError, match="did you mean 'cnn-small'"):
        load(path, name="cnn-smal")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"w\.safetensors cannot be read"):
        load(path, name="cnn-small")
