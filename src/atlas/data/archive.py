"""Compressed files and archives, read in memory and never extracted to disk.

Whatever an archive says, no more is unpacked than the caller allows, only members that the caller names are
looked at, and links, devices and sparse files are refused.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import tarfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from atlas.errors import DataError

GET_AGAIN = "nothing was changed; move the file away and run `atlas data fetch`, or point to another folder"


@dataclass(frozen=True)
class File:
    """A file's name, its length in bytes, and its published MD5 or its sha256 (which is used if known)."""

    name: str
    size: int
    md5: str = ""
    sha256: str = ""

    @property
    def digest(self) -> str:
        """The digest that is tested, with its kind: "sha256:..." or "md5:..."."""
        return f"sha256:{self.sha256}" if self.sha256 else f"md5:{self.md5}"

    def mismatch(self, data: bytes) -> str:
        """What is wrong with `data`, or "" if it is this file to the bit."""
        if len(data) != self.size:
            return f"expected {self.size} bytes, found {len(data)}"
        kind, _, expected = self.digest.partition(":")
        found = hashlib.new(kind, data, usedforsecurity=False).hexdigest()
        return "" if found == expected else f"expected {kind} {expected}, found {found}"

    def check(self, data: bytes, where: str) -> bytes:
        """`data` if it is this file, to the bit."""
        if problem := self.mismatch(data):
            raise DataError(f"{where}: {problem}; {GET_AGAIN}")
        return data

    def check_size(self, size: int, where: str) -> None:
        """Refuse a wrong length before anything is read."""
        if size != self.size:
            raise DataError(f"{where}: expected {self.size} bytes, found {size}; {GET_AGAIN}")

    def read(self, path: Path) -> bytes:
        """The content of `path`, its length tested before it is read and its digest after."""
        try:
            self.check_size(path.stat().st_size, str(path))
            return self.check(path.read_bytes(), str(path))
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); {GET_AGAIN}") from error


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
