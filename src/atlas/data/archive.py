"""Compressed files and archives, read in memory and never extracted to disk.

Whatever an archive says, no more is unpacked than the caller allows, only members that the caller names are
looked at, and links, devices and sparse files are refused.
"""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Collection

from atlas.data.files import GET_AGAIN, File
from atlas.errors import DataError

_BROKEN = (
    tarfile.TarError,
    EOFError,
    OSError,
    ValueError,
    zlib.error,
    lzma.LZMAError,
    RecursionError,
    MemoryError,
)
_HEADERS = 1 << 20  # what a tar may hold beside the members we know: headers, a readme, names of classes


def gunzip(data: bytes, file: File, where: str) -> bytes:
    """`file`, which `data` holds compressed. Unpacks at most one byte more than the file is long."""
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            raw = stream.read(file.size + 1)
    except _BROKEN as error:
        raise DataError(f"{where}: not a whole gzip file ({error}); {GET_AGAIN}") from error
    return file.check(raw, f"{where}, unpacked")


def untar(
    data: bytes, folder: str, wanted: Collection[File], known: Collection[File], where: str
) -> list[bytes]:
    """The `wanted` members of folder/ in a .tar.gz or .tar.xz, in the order asked for.

    `known` are all the members that the archive should hold: their lengths bound what is unpacked.
    """
    prefix = f"{folder}/" if folder else ""
    names = {prefix + file.name: file for file in wanted}
    packed = io.BytesIO(data)
    try:
        with lzma.LZMAFile(packed) if where.endswith(".xz") else gzip.GzipFile(fileobj=packed) as stream:
            capped = _Capped(stream, sum(file.size for file in known) + _HEADERS, where)
            found = _members(capped, names, where)
    except _BROKEN as error:
        raise DataError(f"{where}: not a whole archive ({error}); {GET_AGAIN}") from error
    missing = ", ".join(name for name in names if name not in found)
    if missing:
        raise DataError(f"{where}: expected the members {missing}, found none of that name; {GET_AGAIN}")
    return [found[name] for name in names]


def _members(stream: _Capped, names: dict[str, File], where: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=stream, mode="r|") as tar:  # type: ignore[call-overload]
        for member in tar:
            if member.name not in names:
                continue
            place = f"{where}: {member.name}"
            if not member.isreg() or member.issparse():
                raise DataError(f"{place}: expected a plain file, found a link or a special one; {GET_AGAIN}")
            file = names[member.name]
            file.check_size(member.size, place)
            content = tar.extractfile(member)
            found[member.name] = file.check(content.read() if content else b"", place)
            if len(found) == len(names):
                break
    return found


class _Capped:
    """A stream that refuses to give more than `limit` bytes in all. tarfile asks for 10 kB at a time."""

    def __init__(self, stream: lzma.LZMAFile | gzip.GzipFile, limit: int, where: str) -> None:
        self.stream, self.left, self.limit, self.where = stream, limit, limit, where

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise DataError(
                f"{self.where}: unpacks to more than the {self.limit} bytes expected; {GET_AGAIN}"
            )
        return data
