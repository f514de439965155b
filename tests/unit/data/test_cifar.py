"""CIFAR's formats: the real files, and pickles that try to run something."""

from __future__ import annotations

import builtins
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atlas.data import load
from atlas.data.readers import parse_pickles, parse_records, safe_unpickle
from atlas.data.store import SOURCES, present
from atlas.errors import DataError


class Calls:
    """Pickles to a call of `function`."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def harmful(canary: Path) -> dict[str, object]:
    """Objects whose pickles, read by the standard library, write the canary."""
    touch = f"touch '{canary}'"
    return {
        "os.system": Calls(os.system, touch),
        "exec": Calls(vars(builtins)["exec"], f"open({str(canary)!r}, 'w')"),
        "eval": Calls(vars(builtins)["eval"], f"open({str(canary)!r}, 'w')"),
        "subprocess": Calls(subprocess.check_call, ["touch", str(canary)]),
        "open": Calls(open, str(canary), "w"),
        "numpy": Calls(np.memmap, str(canary), "uint8", "w+", 0, (1,)),
        "numpy.save": Calls(np.save, str(canary), np.zeros(1)),
        "torch": Calls(torch.save, 1, str(canary)),
        "nested": {"data": [Calls(os.system, touch)]},
    }


@pytest.mark.parametrize("name", harmful(Path()))
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(
    tmp_path: Path, name: str, protocol: int
) -> None:
    canary = tmp_path / "canary"
    data = pickle.dumps(harmful(canary)[name], protocol)
    with pytest.raises(DataError, match="which is not an array or a container"):
        safe_unpickle(data)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["os.system", "numpy"])
def test_the_canary_can_sing(tmp_path: Path, name: str) -> None:
    """The same pickles do write their file when the standard library reads them."""
    data = pickle.dumps(harmful(tmp_path / "canary")[name])
    subprocess.run(
        [sys.executable, "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)"], input=data, check=True
    )
    assert [path.name for path in tmp_path.iterdir()] == ["canary"]


@pytest.mark.parametrize(
    "data",
    {
        "INST": b"(S'touch canary'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'touch canary'\no.",
        "dotted": b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.__class\x93.",
        "a known name from another module": b"cos\n_reconstruct\n.",
        "another name of a known module": b"cnumpy.core.multiarray\nfromfile\n.",
        "numpy 2's name": b"cnumpy._core.multiarray\n_reconstruct\n.",
        "call of ndarray": b"cnumpy\nndarray\n(K\x05tR.",
        "new ndarray": b"cnumpy\nndarray\n)\x81.",
        "change of a known name": b"cnumpy\nndarray\n}S'shape'\nK\x01sb.",
        "change of another": b"cnumpy.core.multiarray\n_reconstruct\n(N}S'__call__'\nK\x01stb.",
        "extension registry": b"\x82\x01.",
        "persistent id": b"Pcanary\n.",
        "codec": b"c_codecs\nencode\n(S'x'\nS'latin1'\ntR.",
        "empty": b"",
        "cut": b"\x80\x02}(U\x04da",
        "garbage": b"\xff\xfe\xfd",
    }.items(),
    ids=lambda item: item[0],
)
def test_every_other_way_in_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: tuple[str, bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="a pickle that is refused or broken"):
        safe_unpickle(data[1])
    assert list(tmp_path.iterdir()) == []


def array(state: bytes, code: bytes = b"U\x02u1") -> bytes:
    """An array pickle with this state after (version, ...); `D` stands for its dtype."""
    dtype = b"cnumpy\ndtype\n" + code + b"K\x00K\x01\x87R"
    head = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
    return head + state.replace(b"D", dtype) + b"tb."


def test_a_small_array_comes_through() -> None:
    read: Any = safe_unpickle(array(b"K\x02K\x01\x86D\x89U\x02ab"))
    assert (read.shape, read.data) == ((2, 1), b"ab")


@pytest.mark.parametrize(
    "data",
    [
        array(b"K\x02\x85D\x89](NNe", b"U\x02O8"),  # objects
        array(b"K\x02\x85D\x89](K\x01K\x02e"),  # a list where the bytes should be
        array(b"K\x02\x85D\x89U\x10aaaaaaaabbbbbbbb", b"U\x02f8"),  # floats
        array(b"K\x02\x85D\x89U\x02ab", b"U\x02i1"),  # signed
        array(b"K\x02K\x01\x86D\x88U\x02ab"),  # Fortran's order
        array(b"K\x03\x85D\x89U\x02ab"),  # too few bytes
        array(b"L1099511627776L\n\x85D\x89U\x02ab"),  # a terabyte
        array(b"J\xff\xff\xff\xffJ\xfe\xff\xff\xff\x86D\x89U\x02ab"),  # -1 x -2
        array(b"K\x02\x85N\x89U\x02ab"),  # no dtype
        array(b"K\x02\x85D\x89"),  # no bytes
    ],
)
def test_arrays_that_are_not_plain_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="a pickle that is refused or broken"):
        safe_unpickle(data)


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {},
        {b"labels": [1]},
        {b"data": b"x" * 3072, b"labels": [1]},
        {b"data": [1], b"labels": [1]},
    ],
)
def test_a_pickle_of_something_else_is_refused(content: object) -> None:
    with pytest.raises(DataError, match="expected a dictionary with an array 'data' and a list 'labels'"):
        parse_pickles([pickle.dumps(content, 3)], b"labels")


@pytest.mark.parametrize(
    "labels", [b"](K\x01K\x02e", b"]", b"](\x88e", b"](G?\xf0\x00\x00\x00\x00\x00\x00e", b"](U\x01ae"]
)
def test_labels_that_do_not_fit_are_refused(labels: bytes) -> None:
    image = array(b"K\x01M\x00\x0c\x86D\x89T\x00\x0c\x00\x00" + b"x" * 3072)[:-1]
    data = b"\x80\x02}(U\x04data" + image + b"U\x06labels" + labels + b"u."
    with pytest.raises(DataError, match="one whole label an image"):
        parse_pickles([data], b"labels")


@pytest.mark.parametrize("size", [0, 3072, 3074, 2 * 3073 - 1])
def test_records_that_are_cut_are_refused(size: int) -> None:
    with pytest.raises(DataError, match=f"records of 3073 bytes, found {size} bytes"):
        parse_records([bytes(size)], 1)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    ("name", "labels"), [("cifar10", [b"labels"]), ("cifar100", [b"coarse_labels", b"fine_labels"])]
)
def test_the_python_version_read_by_us_is_the_published_binary_version(
    data_root: Path, name: str, labels: list[bytes], train: bool
) -> None:
    """Pixels and labels, put together as records, have the digests of the files that others publish."""
    place = present(name, train, data_root)
    if place is None or not place.form.parser.endswith("python"):
        pytest.skip(f"the full {name} is not here: set ATLAS_DATA, or run `atlas data fetch {name}`")
    binary = SOURCES[name].forms[1]
    images, records = load(name, train, data_root), []
    for part, file in zip(place.read(), binary.train if train else binary.test, strict=True):
        fields: Any = safe_unpickle(part)
        columns = [torch.tensor(fields[key], dtype=torch.uint8)[:, None] for key in labels]
        start = sum(len(record) for record in records) // (3072 + len(labels))
        pixels = images.x[start:][: len(columns[0])].flatten(1)
        records.append(torch.cat([*columns, pixels], 1).numpy().tobytes())
        assert file.mismatch(records[-1]) == ""
    x, y = parse_records(records, len(labels))
    assert torch.equal(x, images.x)
    assert torch.equal(y, images.y)
    assert set(images.y.bincount().tolist()) == {len(images) // images.num_classes}
