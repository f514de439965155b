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
from atlas.data.readers import parse_records, safe_unpickle
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
        "codec": b"c_codecs\nencode\n(S'x'\nS'latin1'\ntR.",
    }.items(),
    ids=lambda item: item[0],
)
def test_every_other_way_in_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: tuple[str, bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="which is not an array or a container"):
        safe_unpickle(data[1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    ("name", "labels"), [("cifar10", ["labels"]), ("cifar100", ["coarse_labels", "fine_labels"])]
)
def test_the_python_version_read_by_us_is_the_published_binary_version(
    data_root: Path, name: str, labels: list[str], train: bool
) -> None:
    """Pixels and labels, put together as records, have the digests of the files that others publish."""
    place = present(name, train, data_root)
    if place is None or not place.form.parser.endswith("python"):
        pytest.skip(f"the full {name} is not here: set ATLAS_DATA, or run `atlas data fetch {name}`")
    binary = SOURCES[name].forms[1]
    images, records = load(name, train, data_root), []
    for part, file in zip(place.read(), binary.train if train else binary.test, strict=True):
        fields = safe_unpickle(part)
        columns = [torch.tensor(fields[key], dtype=torch.uint8)[:, None] for key in labels]
        start = sum(len(record) for record in records) // (3072 + len(labels))
        pixels = images.x[start:][: len(columns[0])].flatten(1)
        records.append(torch.cat([*columns, pixels], 1).numpy().tobytes())
        assert file.mismatch(records[-1]) == ""
    x, y = parse_records(records, len(labels))
    assert torch.equal(x, images.x)
    assert torch.equal(y, images.y)
    assert set(images.y.bincount().tolist()) == {len(images) // images.num_classes}
