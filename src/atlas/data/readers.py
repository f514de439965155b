"""Readers of data files: the formats of the named data sets, and .npz files.

Files of named sets are parsed after their digest was checked (`store.Location.read`); .npz files come from
anywhere, and nothing in them is run.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atlas.errors import DataError

_SHAPE = (3, 32, 32)
_RECONSTRUCT = np.empty(0).__reduce__()[0]  # private, and in another module since numpy 2
_ARRAY_PARTS = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
BOMB_RATIO, BOMB_BYTES = 200, 1 << 30
"""An .npz file that unpacks to more than so many times its size and more than so many bytes is refused."""


def parse_idx(data: bytes, rank: int) -> Tensor:
    """The uint8 tensor of an idx file: a magic number, one 32-bit length per axis, then the bytes."""
    start = 4 + 4 * rank
    shape = struct.unpack(f">{rank}I", data[4:start])
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)[start:].view(shape)


def format_idx(array: Tensor) -> bytes:
    """The idx file of a uint8 tensor."""
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.contiguous().numpy().tobytes()


def parse_pair(parts: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    """x uint8 [N, 1, H, W] and y int64 [N] from the two idx files of images and labels."""
    images, labels = parts
    return parse_idx(images, 3)[:, None], parse_idx(labels, 1).to(torch.int64)


def parse_records(parts: Sequence[bytes], label_bytes: int) -> tuple[Tensor, Tensor]:
    """x uint8 [N, 3, 32, 32] and y int64 [N] from records of labels (the fine one last) and pixels."""
    records = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)
    records = records.view(-1, label_bytes + math.prod(_SHAPE))
    return records[:, label_bytes:].reshape(-1, *_SHAPE), records[:, label_bytes - 1].to(torch.int64)


def parse_pickles(parts: Sequence[bytes], label: str) -> tuple[Tensor, Tensor]:
    """x uint8 [N, 3, 32, 32] and y int64 [N] from pickled dictionaries with "data" and `label`."""
    tables = [safe_unpickle(part) for part in parts]
    x = np.concatenate([table["data"] for table in tables]).reshape(-1, *_SHAPE)
    y = [value for table in tables for value in table[label]]
    return torch.from_numpy(x), torch.tensor(y, device="cpu")


def safe_unpickle(data: bytes) -> Any:
    """The containers and numpy arrays in a pickle; any other class or function that it names is refused."""
    return _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ARRAY_PARTS:
            raise DataError(f"the pickle names {module}.{name}, which is not an array or a container")
        return _ARRAY_PARTS[module, name]


PARSERS: Mapping[str, Callable[[Sequence[bytes]], tuple[Tensor, Tensor]]] = {
    "idx": parse_pair,
    "cifar10-python": partial(parse_pickles, label="labels"),
    "cifar100-python": partial(parse_pickles, label="fine_labels"),
    "cifar10-binary": partial(parse_records, label_bytes=1),
    "cifar100-binary": partial(parse_records, label_bytes=2),
}
"""From the bytes of a half's files to x and y, by the `parser` in sources.toml."""


def npz_names(path: Path) -> list[str]:
    """The arrays that the file says it holds."""
    with _npz(path) as file:
        return list(file.files)


def npz_note(path: Path, content: bytes) -> str:
    """The text that `add_npz_note` has put into the content of a file; "" if there is none."""
    with _npz(path, content) as file:
        return str(file.zip.comment.decode(errors="replace"))


def add_npz_note(content: bytes, text: str) -> bytes:
    """The content of an .npz file with a text beside its arrays, which numpy ignores."""
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = text.encode()
    return buffer.getvalue()


def read_npz(
    path: Path, names: Iterable[str] | None = None, content: bytes | None = None
) -> dict[str, NDArray[Any]]:
    """The arrays of these names, or all of them; from the file's content if that is in memory."""
    with _npz(path, content) as file:
        members = file.zip.infolist()
        size, packed = sum(m.file_size for m in members), sum(m.compress_size for m in members)
        if size > max(BOMB_BYTES, BOMB_RATIO * packed):
            raise DataError(f"{path}: refused: {packed:,} bytes that unpack to {size:,}")
        return {name: file[name] for name in (file.files if names is None else names)}


@contextmanager
def _npz(path: Path, content: bytes | None = None) -> Iterator[Any]:
    try:
        with np.load(path if content is None else io.BytesIO(content), allow_pickle=False) as file:
            yield file
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and numpy have no common error for damage
        raise DataError(
            f"{path}: not an .npz file of plain arrays ({type(error).__name__}: {error})"
        ) from error
