"""Plain arrays in .npz files from anywhere: nothing is unpickled, and no more unpacked than the file admits.

numpy's own reader makes room for whatever a header claims before it looks whether there is as much.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from atlas.errors import DataError

Arrays = dict[str, NDArray[Any]]

MOST_ARRAYS = 32
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
BOMB_RATIO, BOMB_BYTES = 200, 1 << 30
"""Images that unpack to more than this many times their size, and to more bytes than that, are none."""


def names(path: Path) -> list[str]:
    """The arrays that the file says it holds."""
    with _opened(path) as archive:
        return _names(archive)


def note(path: Path, content: bytes) -> str:
    """The text that `with_note` has put into the content of a file; "" where there is none."""
    with _opened(path, content) as archive:
        return archive.comment.decode(errors="replace")


def with_note(content: bytes, text: str) -> bytes:
    """The content of an .npz file with a text beside its arrays, which numpy passes over."""
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = text.encode()
    return buffer.getvalue()


def _names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist()]


def read(path: Path, wanted: Iterable[str] | None = None, content: bytes | None = None) -> Arrays:
    """The arrays of these names, or all of them; from the file's content where that is at hand."""
    with _opened(path, content) as archive:
        keys = _names(archive) if wanted is None else list(wanted)
        try:
            _check_size(archive, keys)
            return {key: _array(archive.read(f"{key}.npy")) for key in keys}
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        except MemoryError:
            raise  # which says nothing of the file
        except Exception as error:  # what zipfile, zlib and numpy raise of damage has no base in common
            raise _not_plain(path, error) from error


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
        raise DataError(f"{len(members)} arrays; wanted {MOST_ARRAYS} at most")
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
