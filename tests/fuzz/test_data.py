"""Whatever a data file holds: images, or an error of data."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

from atlas.data import load
from atlas.errors import DataError
from tests.fuzz.fuzzing import FEW, MANY, Changes, changed, changes, fuzz

X = np.arange(2 * 5 * 4, dtype=np.uint8).reshape(2, 5, 4)
Y = np.array([0, 3], np.uint8)


def npz(packed: bool, **arrays: object) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(file, **arrays)
    return file.getvalue()


def picture(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(X[0]).save(file, kind)
    return file.getvalue()


PICTURES = ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]
Read = Callable[[bytes, Path], object]
READERS: dict[str, tuple[Sequence[bytes], Read]] = {
    "npz": (
        [npz(packed, x=X, y=Y) for packed in (False, True)],
        lambda data, folder: load(written(folder / "set.npz", data)),
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


def test_an_npz_bomb_is_refused_by_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atlas.data.readers.BOMB_BYTES", 1 << 20)
    path = tmp_path / "bomb.npz"
    path.write_bytes(npz(True, x=np.zeros((2 << 20, 1, 1), np.uint8), y=np.zeros(2 << 20, np.uint8)))
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match=r"refused: [\d,]+ bytes that unpack to 4,194,"):
        load(path)
