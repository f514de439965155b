"""Whatever a data file holds: images, or an error of data."""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import tarfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from PIL import Image

from atlas.data import Images, load
from atlas.data.readers import format_idx, parse_pair, parse_pickles, parse_records
from atlas.data.store import File, gunzip, untar
from atlas.errors import DataError
from tests.fuzz.fuzzing import FEW, MANY, Changes, changed, changes, fuzz

X = torch.arange(2 * 5 * 4, dtype=torch.uint8).view(2, 5, 4)
Y = torch.tensor([0, 3], dtype=torch.uint8)


def of_numpy(state: bytes) -> bytes:
    """A pickled array of bytes as numpy wrote them for CIFAR."""
    dtype = b"cnumpy\ndtype\nq\x03U\x02u1q\x04K\x00K\x01\x87q\x05Rq\x06"
    dtype += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    head = b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87R"
    return head + b"(K\x01" + state + dtype + b"\x89T\x00\x0c\x00\x00" + bytes(3072) + b"tb"


CIFAR = (
    b"\x80\x02}(U\x04data" + of_numpy(b"K\x01M\x00\x0c\x86") + b"U\x06labels](K\x07eU\x09filenames](U\x01aeu."
)
PICKLES = [CIFAR] + [pickle.dumps({b"data": [1, (2, "x")], b"labels": [1]}, n) for n in range(6)]


def npz(packed: bool, **arrays: object) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(file, **arrays)
    return file.getvalue()


def tar(*names: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
    return file.getvalue()


def picture(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(X[0].numpy()).save(file, kind)
    return file.getvalue()


HELLO = File("a", 5, sha256="2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
TAR = tar("set/a", "set/" + "b" * 120, "../c")
PICTURES = ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]
Read = Callable[[bytes, Path], object]
READERS: dict[str, tuple[Sequence[bytes], Read]] = {
    "idx": (
        [format_idx(X), format_idx(Y)],
        lambda data, _: parse_pair([format_idx(X), data] if data[3:4] == b"\x01" else [data, format_idx(Y)]),
    ),
    "cifar binary": ([bytes([5]) + bytes(3072)] * 2, lambda data, _: parse_records([data], 1)),
    "cifar pickle": (PICKLES, lambda data, _: parse_pickles([data], b"labels")),
    "npz": (
        [npz(packed, x=X.numpy(), y=Y.numpy()) for packed in (False, True)],
        lambda data, folder: load(written(folder / "set.npz", data)),
    ),
    "gzip": ([gzip.compress(b"hello")], lambda data, _: gunzip(data, HELLO, "a.gz")),
    "tar.gz": ([gzip.compress(TAR)], lambda data, _: untar(data, "set", [HELLO], [HELLO], "a.tar.gz")),
    "tar.xz": ([lzma.compress(TAR)], lambda data, _: untar(data, "set", [HELLO], [HELLO], "a.tar.xz")),
    "tar, unpacked": (
        [TAR],
        lambda data, _: untar(gzip.compress(data, 0), "set", [HELLO], [HELLO], "a.tar.gz"),
    ),
    "images": (
        [picture(kind) for kind in PICTURES],
        lambda data, folder: load(written(folder / "own/cat/1.png", data).parents[1]),
    ),
}
COUNTS = [
    pytest.param(FEW // 3, id="few"),
    pytest.param(2 * MANY // len(READERS), id="many", marks=pytest.mark.slow),
]
"""For each of the readers."""


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", READERS)
def test_a_reader(tmp_path: Path, name: str, count: int) -> None:
    corpus, read = READERS[name]
    good = [0]

    def check(case: tuple[bytes, Changes]) -> None:
        data = changed(*case)
        with suppress(DataError):
            read(data, tmp_path)
            good[0] += 1

    fuzz(st.tuples(st.sampled_from(list(corpus)), changes), check, count)
    assert 0 < good[0] < count, "all came through, or nothing"


def test_a_picture_that_makes_pillow_raise_anything(tmp_path: Path) -> None:
    data = changed(picture("TIFF"), [("repeat", 0.5, b""), ("flip", 0.3984375, b"")])
    with pytest.raises(DataError, match="cannot be decoded"):
        load(written(tmp_path / "own/cat/1.png", data).parents[1])


@pytest.mark.parametrize(
    "steps",
    {
        "a place in the memo beyond all": b"\x80\x02K\x01r\xff\xff\xff\xff.",
        "the same, in digits": b"I1\np4000000000\n.",
        "tuples that take twice as long each": b"\x80\x02(}K\x01"
        + b"0\x85q\x01h\x01h\x01\x86" * 60
        + b"K\x01s.",
        "many tuples": b"(" + b")" * 40 + b"l.",
        "a set": b"\x80\x04\x8f(K\x01\x90.",
    }.items(),
    ids=lambda item: item[0],
)
def test_a_few_bytes_take_neither_all_memory_nor_all_time(steps: tuple[str, bytes]) -> None:
    with pytest.raises(DataError, match="a pickle that is refused or broken"):
        parse_pickles([steps[1]], b"labels")


def test_an_npz_bomb_is_refused_by_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atlas.data.readers.BOMB_BYTES", 1 << 20)
    path = tmp_path / "bomb.npz"
    path.write_bytes(npz(True, x=np.zeros((2 << 20, 1, 1), np.uint8), y=np.zeros(2 << 20, np.uint8)))
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match=r"refused: [\d,]+ bytes that unpack to 4,194,"):
        load(path)


def test_an_npz_that_needs_more_memory_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 10)
    path = tmp_path / "large.npz"
    path.write_bytes(npz(False, x=X.numpy(), y=Y.numpy()))
    with pytest.raises(DataError, match="with 100 of memory"):
        load(path)


def test_labels_that_lost_their_sign() -> None:
    with pytest.raises(DataError, match="read as unsigned"):
        Images(X[:, None], torch.tensor([0, 2**32 - 1]), 2**32)
