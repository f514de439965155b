"""Small data sets in the published formats, registered under names of their own."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atlas.data import Images
from atlas.data.readers import format_idx
from atlas.data.store import SOURCES, File, Form, Source

Snapshot = Callable[[], dict[str, tuple[int, bytes]]]


def file_of(name: str, data: bytes) -> File:
    return File(name, len(data), sha256=hashlib.sha256(data).hexdigest())


def tar_gz(members: Mapping[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz", compresslevel=1) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return raw.getvalue()


def python2_array(x: Tensor, code: bytes = b"u1") -> bytes:
    """The opcodes that Python 2 wrote for a uint8 array in CIFAR's files."""
    shape = b"".join(b"M" + struct.pack("<H", size) for size in x.shape)
    raw = x.contiguous().numpy().tobytes()
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + shape + b"\x86"
        b"cnumpy\ndtype\nU" + bytes([len(code)]) + code + b"K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", len(raw))
        + raw
        + b"tb"
    )


def python2_pickle(x: Tensor, y: Tensor, label: bytes = b"labels") -> bytes:
    """A batch of CIFAR's python version: x uint8 [n, 3072], y [n]."""
    labels = b"](" + b"".join(b"K" + bytes([value]) for value in y.tolist()) + b"e"
    key = b"U" + bytes([len(label)]) + label
    return b"\x80\x02}(U\x04data" + python2_array(x) + key + labels + b"u."


def random_images(n: int, shape: tuple[int, ...], classes: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (n, *shape), generator=generator, dtype=torch.uint8)
    return x, torch.randint(0, classes, (n,), generator=generator)


class Toy:
    """A registered set and the files of each of its forms."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.halves: dict[bool, tuple[Tensor, Tensor]] = {}
        self.files: dict[str, dict[str, bytes]] = {}  # form -> path below the root -> content

    def write(self, form: str) -> list[Path]:
        paths = []
        for name, data in self.files[form].items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            paths.append(path)
        return paths

    def holds(self, images: Images, train: bool) -> bool:
        x, y = self.halves[train]
        return torch.equal(images.x, x) and torch.equal(images.y, y)


@pytest.fixture
def idx_toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """`idx-toy`: 30 + 10 gray images of 5x4 in the files of MNIST."""
    toy, open_files = Toy(tmp_path / "root"), {}
    for half, train, n in (("train", True, 30), ("t10k", False, 10)):
        x, y = random_images(n, (1, 5, 4), 10, seed=n)
        toy.halves[train] = x, y
        open_files[f"{half}-images-idx3-ubyte"] = format_idx(x[:, 0])
        open_files[f"{half}-labels-idx1-ubyte"] = format_idx(y.to(torch.uint8))
    packed = {f"{name}.gz": gzip.compress(data) for name, data in open_files.items()}
    known = [file_of(name, data) for name, data in open_files.items()]
    gz = tuple(file_of(name, data) for name, data in packed.items())
    form = Form("idx", "Toy/raw", tuple(known[:2]), tuple(known[2:]), gz=gz)
    toy.files = {
        "open": {f"Toy/raw/{name}": data for name, data in open_files.items()},
        "gz": {f"Toy/raw/{name}": data for name, data in packed.items()},
    }
    monkeypatch.setitem(SOURCES, "idx-toy", Source("a toy", "none", 10, (form,)))
    return toy


@pytest.fixture(params=["cifar10", "cifar100"])
def cifar_toy(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """`cifar-toy`: 8 + 3 images in the python and the binary version of CIFAR-10 or CIFAR-100."""
    kind, fine = request.param, request.param == "cifar100"
    toy, python, binary = Toy(tmp_path / "root"), {}, {}
    for train, names in ((True, ("one", "two")), (False, ("test",))):
        x, y = random_images(4 * len(names) - (not train), (3, 32, 32), 100 if fine else 10, seed=len(names))
        toy.halves[train] = x, y
        for part, name in enumerate(names):
            rows, labels = x[4 * part :][:4].flatten(1), y[4 * part :][:4]
            python[name] = python2_pickle(rows, labels, b"fine_labels" if fine else b"labels")
            coarse = [labels[:, None] // 5] if fine else []
            binary[f"{name}.bin"] = (
                torch.cat([*coarse, labels[:, None], rows], 1).to(torch.uint8).numpy().tobytes()
            )
    forms = []
    for version, folder, files in (("python", "toy-py", python), ("binary", "toy-bin", binary)):
        known = [file_of(name, data) for name, data in files.items()]
        tar = tar_gz({f"{folder}/{name}": data for name, data in {"readme": b"hello", **files}.items()})
        archive = file_of(f"{folder}.tar.gz", tar)
        forms.append(Form(f"{kind}-{version}", folder, tuple(known[:2]), tuple(known[2:]), tar=archive))
        toy.files[version] = {f"{folder}/{name}": data for name, data in files.items()}
        toy.files[f"{version}-tar"] = {archive.name: tar}
    monkeypatch.setitem(SOURCES, "cifar-toy", Source("a toy", "none", 100, tuple(forms)))
    return toy


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    """What lies below tmp_path: every file's time of change and content."""

    def take() -> dict[str, tuple[int, bytes]]:
        files = (path for path in sorted(tmp_path.rglob("*")) if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    return take
