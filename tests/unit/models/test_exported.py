"""Archives by torch.export: the same outputs and gradients, any batch, and nothing in them is run.

Each tampered archive is first shown to run code in torch's own loader, so that a hole that torch closes is
seen to be closed.
"""

from __future__ import annotations

import copy
import io
import json
import os
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas.attacks import PGD, frozen
from atlas.errors import CheckpointError, UsageError
from atlas.models import build
from atlas.models.exported import load_exported
from atlas.threat import Linf

Records = dict[str, bytes]


class Attention(nn.Module):
    """Much of what a graph can hold: constants, attention, named modes, sizes that are computed, no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 16, 7, 7)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
        self.head = nn.Linear(16, 10)
        self.register_buffer("mean", torch.tensor([0.1]), persistent=False)
        self.scale = torch.full((1,), 0.5)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            shift = 2 * self.mean
        tokens = self.patches((x - shift) / self.scale).flatten(2).transpose(1, 2)
        tokens = torch.einsum("bnd,de->bne", tokens, torch.eye(16))
        tokens = self.layer(tokens).view(x.shape[0] * 16, 16).view(x.shape[0], 16, 16)
        return self.head(F.gelu(tokens.mean(1), approximate="tanh"))  # type: ignore[no-any-return]


class Pixels(nn.Module):
    """A network whose input is named like no argument of an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = build("cnn-small")

    def forward(self, pixels: Tensor) -> Tensor:
        return self.net(pixels)  # type: ignore[no-any-return]


NETS: dict[str, Callable[[], nn.Module]] = {
    "cnn-small": lambda: build("cnn-small"),
    "wrn, normalised": lambda: build("wrn-10-1", shape=(1, 28, 28), normalize=((0.1,), (0.3,))),
    "attention": Attention,
    "double": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).double(),
}
BATCHES: dict[str, Any] = {
    "any batch": {0: torch.export.Dim("batch")},
    "at most 5": {0: torch.export.Dim("batch", max=5)},
    "batches of 4": None,
}


def export(net: nn.Module, path: Path, batch: Any = None, core: bool = False) -> Path:
    dtype = next(net.parameters()).dtype
    x = torch.rand(4, 1, 28, 28, dtype=dtype)
    program = torch.export.export(net, (x,), dynamic_shapes=(batch,))
    torch.export.save(program.run_decompositions() if core else program, path)
    return path


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "net.pt2"
    return export(Pixels().eval(), path, BATCHES["any batch"])


@pytest.mark.parametrize(
    ("kind", "batch"),
    [
        ("cnn-small", "any batch"),
        ("cnn-small", "at most 5"),
        ("wrn, normalised", "batches of 4"),
        ("attention", "any batch"),
        ("double", "batches of 4"),
    ],
)
def test_outputs_and_gradients_are_the_models_own_in_any_batch(kind: str, batch: str, tmp_path: Path) -> None:
    net = NETS[kind]().eval()
    model = load_exported(export(net, tmp_path / "net.pt2", BATCHES[batch]))
    dtype = next(net.parameters()).dtype
    for size in (1, 4, 11):
        x = torch.rand(size, 1, 28, 28).requires_grad_()
        wanted, got = net(x.to(dtype)).float(), model(x)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
        weights = torch.randn_like(wanted)
        gradients = [torch.autograd.grad((out * weights).sum(), x)[0] for out in (wanted, got)]
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_a_graph_of_core_operations(tmp_path: Path) -> None:
    net, x = Attention().eval(), torch.rand(3, 1, 28, 28)
    model = load_exported(export(net, tmp_path / "net.pt2", BATCHES["any batch"], core=True))
    torch.testing.assert_close(model(x), net(x), rtol=1e-4, atol=1e-5)


def test_it_can_be_attacked_and_comes_back_as_it_was(archive: Path) -> None:
    model, x = load_exported(archive), torch.rand(6, 1, 28, 28)
    y = model(x).argmax(1)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert before, "weights are the module's own, so that they can be frozen"
    x_adv = PGD(steps=3)(model, x, y, Linf(0.1))
    assert F.cross_entropy(model(x_adv), y) > F.cross_entropy(model(x), y)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with frozen(model):
        assert not any(p.requires_grad for p in model.parameters())


def test_a_copy_in_bfloat16_takes_its_images_so(archive: Path) -> None:
    """As attacks search in lower precision."""
    model, x = load_exported(archive), torch.rand(3, 1, 28, 28).requires_grad_()
    fast = copy.deepcopy(model).to(torch.bfloat16).eval()
    assert fast(x).dtype == torch.float32
    torch.testing.assert_close(fast(x), model(x), rtol=0.1, atol=0.02)
    assert not torch.equal(fast(x), model(x))
    assert torch.autograd.grad(fast(x).sum(), x)[0].dtype == torch.float32


def test_images_of_another_shape_are_refused(archive: Path) -> None:
    model = load_exported(archive)
    for shape in ((1, 32, 32), (3, 28, 28), (784,)):
        with pytest.raises(UsageError, match=r"must be \[1, 28, 28\], got"):
            model(torch.rand(2, *shape))


class Two(nn.Module):
    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return x + z


class Named(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x.flatten(1)}


def test_what_is_no_classifier_is_refused(tmp_path: Path) -> None:
    x = torch.rand(2, 1, 4, 4)
    for net, inputs, message in (
        (Two(), (x, x), "got 2 inputs"),
        (Named(), (x,), "must return one tensor of logits, got a .*dict"),
    ):
        torch.export.save(torch.export.export(net, inputs), tmp_path / "net.pt2")
        with pytest.raises(CheckpointError, match=message):
            load_exported(tmp_path / "net.pt2")


def test_a_batch_that_has_to_be_a_multiple_is_refused(tmp_path: Path) -> None:
    path = export(build("cnn-small").eval(), tmp_path / "net.pt2", {0: 2 * torch.export.Dim("half")})
    with pytest.raises(CheckpointError, match=r"got 2\*s\d+ images: .*Dim\(.batch.\)"):
        load_exported(path)


def test_text_that_tells_archives_apart(archive: Path, tmp_path: Path) -> None:
    other = export(build("cnn-small", seed=1).eval(), tmp_path / "net.pt2", BATCHES["any batch"])
    assert load_exported(archive).sha256 != load_exported(other).sha256
    assert load_exported(archive).sha256 in str(load_exported(archive))


def tampered(archive: Path, to: Path, change: Callable[[Records], None]) -> Path:
    """A copy of the archive with some of its records changed."""
    with zipfile.ZipFile(archive) as old:
        records = {name.partition("/")[2]: old.read(name) for name in old.namelist()}
    change(records)
    with zipfile.ZipFile(to, "w") as new:
        for name, data in records.items():
            new.writestr(f"net/{name}", data)
    return to


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.mark,)


def pickled(mark: str) -> bytes:
    buffer = io.BytesIO()
    torch.save(Evil(mark), buffer)
    return buffer.getvalue()


def edit(records: Records, name: str, change: Callable[[Any], Any]) -> None:
    table = json.loads(records[name])
    records[name] = json.dumps(change(table) or table).encode()


def renamed(value: Any, old: str, new: str) -> Any:
    """The table with every text that is `old` made `new`."""
    if isinstance(value, dict):
        return {new if k == old else k: renamed(v, old, new) for k, v in value.items()}
    if isinstance(value, list):
        return [renamed(v, old, new) for v in value]
    return new if value == old else value


GRAPH, INPUTS = "models/model.json", "data/sample_inputs/model.pt"
WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"


def in_sample_inputs(records: Records, mark: str) -> None:
    records[INPUTS] = pickled(mark)


def in_guards(records: Records, mark: str) -> None:
    code = f"__import__('os').mkdir('{mark}') is None"
    edit(records, GRAPH, lambda graph: graph.update(guards_code=[code]))


def in_old_weights(records: Records, mark: str) -> None:
    records["data/weights/model.pt"] = pickled(mark)


def in_sizes(records: Records, mark: str) -> None:
    def change(graph: Any) -> None:
        size = graph["graph_module"]["graph"]["tensor_values"]["pixels"]["sizes"][0]
        size["as_expr"]["expr_str"] = f"__import__('os').mkdir('{mark}')"

    edit(records, GRAPH, change)


def in_names(records: Records, mark: str) -> None:
    code = f"pixels=__import__('os').mkdir('{mark}')"
    edit(records, GRAPH, lambda graph: renamed(graph, "pixels", code))


def in_weights(records: Records, mark: str) -> None:
    def change(table: Any) -> None:
        entry = next(iter(table["config"].values()))
        entry["use_pickle"] = True
        records["data/weights/" + entry["path_name"]] = pickled(mark)

    edit(records, WEIGHTS, change)


def in_constants(records: Records, mark: str) -> None:
    import pickle

    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    edit(records, CONSTANTS, lambda table: table["config"].update(evil=entry))
    records["data/constants/opaque_obj_0"] = pickle.dumps(Evil(mark))


def in_input_spec(records: Records, mark: str) -> None:
    """A module of the working directory is imported."""
    Path("imported_by_spec.py").write_text(f"import os\nos.mkdir({mark!r})\n")
    context = {"default_factory_module": "imported_by_spec", "default_factory_name": "x", "dict_context": []}
    _respec(records, {"type": "collections.defaultdict", "context": context, "children_spec": []})


def in_input_context(records: Records, mark: str) -> None:
    Path("imported_by_context.py").write_text(f"import os\nos.mkdir({mark!r})\n")
    context = json.dumps({"__enum__": 1, "fqn": "imported_by_context:x", "name": "x"})
    _respec(records, {"type": "builtins.tuple", "context": context, "children_spec": []})


def _respec(records: Records, spec: Any) -> None:
    def change(graph: Any) -> None:
        graph["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = json.dumps([1, spec])

    edit(records, GRAPH, change)


IGNORED = [in_sample_inputs, in_guards, in_old_weights]
REFUSED = [in_sizes, in_names, in_weights, in_constants, in_input_spec, in_input_context]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("imported_by_spec", "imported_by_context"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("hole", IGNORED + REFUSED, ids=lambda hole: hole.__name__)
def test_nothing_in_an_archive_is_run(
    hole: Callable[[Records, str], None], archive: Path, place: Path
) -> None:
    bad = tampered(archive, place / "bad.pt2", lambda records: hole(records, "mark"))
    if hole in IGNORED:
        x = torch.rand(3, 1, 28, 28)
        assert torch.equal(load_exported(bad)(x), load_exported(archive)(x))
    else:
        with pytest.raises(CheckpointError, match=r"could run .*if you trust it, load it yourself"):
            load_exported(bad)
    assert not (place / "mark").exists()
    with suppress(Exception):
        torch.export.load(bad).module()(torch.rand(3, 1, 28, 28))
    assert (place / "mark").exists(), "torch does not run this any more: the case proves nothing"


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.save.default",
        "torch.ops.aten.manual_seed.default",
        "torch.ops.mine.op.default",
        "torch.os.system",
        "#mine:op",
        "_operator.add(1)",
    ],
)
def test_operations_that_are_no_arithmetic_are_refused(target: str, archive: Path, tmp_path: Path) -> None:
    def change(records: Records) -> None:
        edit(records, GRAPH, lambda graph: renamed(graph, "torch.ops.aten.relu.default", target))

    with pytest.raises(CheckpointError, match="as target"):
        load_exported(tampered(archive, tmp_path / "bad.pt2", change))


def test_compiled_libraries_are_left_out(archive: Path, tmp_path: Path) -> None:
    """torch's own loader opens them; here it fails, because this one is none."""

    def change(records: Records) -> None:
        records["data/aotinductor/model/model.so"] = b"no library"

    bad = tampered(archive, tmp_path / "bad.pt2", change)
    with pytest.raises(Exception, match=r"."):
        torch.export.load(bad)
    assert load_exported(bad)(torch.rand(1, 1, 28, 28)).shape == (1, 10)


def test_a_bomb_is_refused_unread(archive: Path, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name) if "weight_0" not in name else bytes(10**7))
    assert bomb.stat().st_size < 10**6
    with pytest.raises(CheckpointError, match="would unpack to more than its own"):
        load_exported(bomb)


@pytest.mark.parametrize("damage", ["cut", "no archive", "empty", "no graph"])
def test_a_damaged_archive_is_named(damage: str, archive: Path, tmp_path: Path) -> None:
    bad, data = tmp_path / "bad.pt2", archive.read_bytes()
    if damage == "no graph":
        tampered(archive, bad, lambda records: records.pop(GRAPH) and None)
    else:
        bad.write_bytes({"cut": data[: len(data) // 2], "no archive": b"x" * 1000, "empty": b""}[damage])
    with pytest.raises(CheckpointError, match=r"bad\.pt2 is not a torch\.export archive"):
        load_exported(bad)
