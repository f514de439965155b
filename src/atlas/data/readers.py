"""Readers of data files from anywhere, which run nothing and unpack no more than a file admits.

- idx, of MNIST: big-endian magic (0, 0, type, rank), one 32-bit length per axis, then the bytes;
- CIFAR-10 and CIFAR-100, in the python version (pickles) and in the binary version (fixed records);
- .npz files of plain arrays: numpy's own reader allocates whatever a header claims before it checks the file.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import pickletools
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from atlas.errors import DataError

_UINT8 = 8
_SHAPE = (3, 32, 32)
_PIXELS = math.prod(_SHAPE)
_MOST_TUPLES = 16  # numpy makes half a dozen for an array
_LARGE_SETS = ("FROZENSET", "EMPTY_SET", "ADDITEMS", "NEXT_BUFFER", "READONLY_BUFFER")

MOST_ARRAYS = 32
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
BOMB_RATIO, BOMB_BYTES = 200, 1 << 30
"""An .npz file that unpacks to more than so many times its size and more than so many bytes is refused."""


def parse_idx(data: bytes, rank: int) -> Tensor:
    """An idx file of bytes with `rank` axes as a uint8 tensor."""
    head = 4 + 4 * rank
    if len(data) < head or data[:4] != bytes((0, 0, _UINT8, rank)):
        raise DataError(f"idx: expected the magic 0 0 {_UINT8} {rank}, found {' '.join(map(str, data[:4]))}")
    shape = struct.unpack(f">{rank}I", data[4:head])
    if len(data) - head != math.prod(shape):
        raise DataError(
            f"idx: expected {math.prod(shape)} bytes for shape {list(shape)}, found {len(data) - head}"
        )
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)[head:].view(shape)


def parse_pair(parts: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    """x uint8 [N, 1, H, W] and y int64 [N] from the two files of images and labels."""
    images, labels = parts
    return parse_idx(images, 3)[:, None], parse_idx(labels, 1).to(torch.int64)


def format_idx(array: Tensor) -> bytes:
    """The idx file of a uint8 tensor."""
    head = bytes((0, 0, _UINT8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.contiguous().numpy().tobytes()


def parse_records(parts: Sequence[bytes], label_bytes: int) -> tuple[Tensor, Tensor]:
    """x uint8 [N, 3, 32, 32] and y int64 [N] from records of labels (the fine one last) and pixels."""
    length = label_bytes + _PIXELS
    for part in parts:
        if not part or len(part) % length:
            raise DataError(f"CIFAR: expected records of {length} bytes, found {len(part)} bytes in all")
    records = torch.cat([_bytes(part).view(-1, length) for part in parts])
    return records[:, label_bytes:].reshape(-1, *_SHAPE), records[:, label_bytes - 1].to(torch.int64)


def parse_pickles(parts: Sequence[bytes], label: bytes) -> tuple[Tensor, Tensor]:
    """x uint8 [N, 3, 32, 32] and y int64 [N] from pickled dictionaries with b"data" and `label`."""
    pairs = [_fields(safe_unpickle(part), label) for part in parts]
    x = torch.cat([_bytes(data).view(-1, *_SHAPE) for data, _ in pairs])
    return x, torch.tensor([value for _, labels in pairs for value in labels], device="cpu")


def _fields(content: object, label: bytes) -> tuple[bytes, list[int]]:
    fields = content if isinstance(content, dict) else {}
    array, labels = fields.get(b"data"), fields.get(label)
    if not isinstance(array, Array) or not isinstance(labels, list):
        raise DataError(f"CIFAR: expected a dictionary with an array 'data' and a list {label.decode()!r}")
    if not all(type(value) is int for value in labels) or array.shape != (len(labels), _PIXELS):
        raise DataError(f"CIFAR: expected {_PIXELS} bytes and one whole label an image, found {array.shape}")
    return array.data, labels


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def safe_unpickle(data: bytes) -> object:
    """The plain containers in a pickle, with every numpy array of bytes as an `Array`.

    Nothing that the pickle names is imported or called: of all globals only the three that numpy writes for
    an array are known, and inert stand-ins take their place.
    """
    try:
        _check_steps(data)
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a broken pickle may raise anything
        raise DataError(f"a pickle that is refused or broken: {error}") from error


def _check_steps(data: bytes) -> None:
    """Refuse steps with which a few bytes could take all memory or all time, before any is made.

    A memo index beyond the end allocates all indices before it; and tuples that hold the same tuple twice,
    nested, double the time to hash at each level.
    """
    tuples = puts = 0
    for step, argument, _ in pickletools.genops(data):
        tuples += "TUPLE" in step.name
        puts += "PUT" in step.name or step.name == "MEMOIZE"
        far = "PUT" in step.name and not 0 <= int(argument or 0) <= puts
        if far or tuples > _MOST_TUPLES or step.name in _LARGE_SETS:
            raise pickle.UnpicklingError(f"the step {step.name}, which no list of images needs here")


class Array:
    """What remains of a pickled numpy array: its shape and its bytes. Only uint8, in C order."""

    shape: tuple[int, ...]
    data: bytes

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        if not (isinstance(dtype, _Dtype) and isinstance(data, bytes) and not fortran):
            raise pickle.UnpicklingError("an array that is not of bytes in C order")
        if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) != len(data):
            raise pickle.UnpicklingError(f"an array of shape {shape} with {len(data)} bytes")
        self.shape, self.data = shape, data


class _Dtype:
    def __setstate__(self, state: object) -> None:
        """uint8 has no byte order, fields or alignment: its state says nothing."""


class _Inert:
    """Stands for a global that is an argument only: it can be neither called nor changed."""

    __slots__ = ()

    def __setstate__(self, state: object) -> NoReturn:
        raise pickle.UnpicklingError("a pickle that changes what it imports")


class _Reconstruct(_Inert):
    __slots__ = ()

    def __call__(self, *_: object) -> Array:
        return Array()


class _MakeDtype(_Inert):
    __slots__ = ()

    def __call__(self, code: object, *_: object) -> _Dtype:
        if code != b"u1":
            raise pickle.UnpicklingError(f"an array of {code!r}, not of uint8")
        return _Dtype()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _Inert:
        """The stand-in of one of numpy's three; anything else is refused."""
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return _Reconstruct()
        if (module, name) == ("numpy", "dtype"):
            return _MakeDtype()
        if (module, name) == ("numpy", "ndarray"):
            return _Inert()
        raise pickle.UnpicklingError(
            f"the pickle names {module}.{name}, which is not an array or a container"
        )


PARSERS: Mapping[str, Callable[[Sequence[bytes]], tuple[Tensor, Tensor]]] = {
    "idx": parse_pair,
    "cifar10-python": partial(parse_pickles, label=b"labels"),
    "cifar100-python": partial(parse_pickles, label=b"fine_labels"),
    "cifar10-binary": partial(parse_records, label_bytes=1),
    "cifar100-binary": partial(parse_records, label_bytes=2),
}
"""From the bytes of a half's files to x and y, by the `parser` in sources.toml."""


def npz_names(path: Path) -> list[str]:
    """The arrays that the file says it holds."""
    with _opened(path) as archive:
        return _names(archive)


def npz_note(path: Path, content: bytes) -> str:
    """The text that `add_npz_note` has put into the content of a file; "" if there is none."""
    with _opened(path, content) as archive:
        return archive.comment.decode(errors="replace")


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
    with _opened(path, content) as archive:
        keys = _names(archive) if names is None else list(names)
        try:
            _check_size(archive, keys)
            return {key: _array(archive.read(f"{key}.npy")) for key in keys}
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        except MemoryError:
            raise  # which says nothing about the file
        except Exception as error:  # zipfile, zlib and numpy have no common error for damage
            raise _not_plain(path, error) from error


def _names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist()]


def _opened(path: Path, content: bytes | None = None) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path if content is None else io.BytesIO(content))
    except (FileNotFoundError, MemoryError):
        raise
    except Exception as error:  # as above
        raise _not_plain(path, error) from error


def _not_plain(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: not an .npz file of plain arrays ({type(error).__name__}: {error})")


def _check_size(archive: zipfile.ZipFile, keys: Sequence[str]) -> None:
    """By the lengths in the directory, beyond which zipfile reads nothing."""
    members = [archive.getinfo(f"{key}.npy") for key in keys]
    if len(members) > MOST_ARRAYS:
        raise DataError(f"must hold at most {MOST_ARRAYS} arrays, got {len(members)}")
    size, packed = (sum(getattr(m, what) for m in members) for what in ("file_size", "compress_size"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory or size > max(BOMB_BYTES, BOMB_RATIO * packed):
        raise DataError(f"refused: {packed:,} bytes that unpack to {size:,}, with {memory:,} of memory")


def _array(data: bytes) -> NDArray[Any]:
    """The array of an .npy file."""
    file = io.BytesIO(data)
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"an array of version {version}")
    shape, fortran, dtype = HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("an array of objects, which could run anything when they are read")
    left = len(data) - file.tell()
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != left:
        raise ValueError(f"an array of shape {shape} and {dtype} in {left} bytes")
    flat = np.frombuffer(data, dtype, offset=file.tell())
    return flat.reshape(shape, order="F" if fortran else "C")
