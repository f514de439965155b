"""Named data sets: where their files lie, and their verified content.

Compressed files and archives are read in memory and never extracted to disk. No more is unpacked than the set
is long, only listed members are read, and links, devices and sparse files are refused.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import tarfile
import tomllib
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from atlas.config import build
from atlas.errors import DataError, choose

EMBEDDED = "mnist-mini"
ENVIRONMENT = "ATLAS_DATA"
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
        """The digest that is checked, with its kind: "sha256:..." or "md5:..."."""
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
        """The content of `path`, its length checked before it is read and its digest after."""
        try:
            self.check_size(path.stat().st_size, str(path))
            return self.check(path.read_bytes(), str(path))
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); {GET_AGAIN}") from error


@dataclass(frozen=True)
class Form:
    """One form of a data set: files in a folder below the root, each half for itself.

    The files may lie open in root/folder; each compressed beside its open name (`gz`, in the order train,
    test); or all of them as folder/name in one archive in the root (`tar`).
    """

    parser: str
    folder: str
    train: tuple[File, ...]
    test: tuple[File, ...]
    gz: tuple[File, ...] = ()
    tar: File | None = None


@dataclass(frozen=True)
class Source:
    """A named data set, in the forms in which it can be read."""

    about: str
    licence: str
    num_classes: int
    forms: tuple[Form, ...]
    mirrors: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()


SOURCES: Mapping[str, Source] = {
    name: build(Source, row, {})
    for name, row in tomllib.loads(Path(__file__).with_name("sources.toml").read_text("utf-8")).items()
}
Located = tuple[tuple[Path, File], ...]


def home(root: Path | str | None = None) -> Path:
    """The folder of the data sets: the argument, else $ATLAS_DATA, else ~/.cache/atlas."""
    return at_home(root or os.environ.get(ENVIRONMENT) or "~/.cache/atlas")


def at_home(path: Path | str) -> Path:
    """The path with ~ and ~USER filled in."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise DataError(f"{path}: {error}; write the folder out") from error


def data_root(name: str, root: Path | str | None = None) -> Path:
    """The folder where this set is looked for: the data sets' folder, or the package for the embedded one."""
    return Path(__file__).parent if name == EMBEDDED else home(root)


@dataclass(frozen=True)
class Location:
    """One way in which half of a data set can be stored: its files, and how they are unpacked."""

    form: Form
    half: tuple[File, ...]
    files: Located
    packed: Literal["", "gz", "tar"] = ""

    def exists(self) -> bool:
        return all(path.is_file() for path, _ in self.files)

    def read(self) -> list[bytes]:
        """The uncompressed, verified content of each file of this half."""
        blobs = [file.read(path) for path, file in self.files]
        where = [str(path) for path, _ in self.files]
        if self.packed == "gz":
            return [gunzip(*each) for each in zip(blobs, self.half, where, strict=True)]
        if self.packed == "tar":
            return untar(blobs[0], self.form.folder, self.half, self.form.train + self.form.test, where[0])
        return blobs


def locations(name: str, train: bool, root: Path) -> Iterator[Location]:
    """Every way in which this half could be stored, in each form the fastest to read first."""
    for form in choose("data set", name, SOURCES).forms:
        half, folder = (form.train if train else form.test), root / form.folder
        yield Location(form, half, _below(folder, half))
        if form.gz:
            packed = form.gz[: len(half)] if train else form.gz[-len(half) :]
            yield Location(form, half, _below(folder, packed), "gz")
        if form.tar:
            yield Location(form, half, _below(root, (form.tar,)), "tar")


def present(name: str, train: bool, root: Path) -> Location | None:
    """The first location where all files of this half exist, verified or not."""
    return next((location for location in locations(name, train, root) if location.exists()), None)


def find(name: str, train: bool, root: Path) -> Location:
    """The first location where all files of this half exist.

    Raises:
        DataError: There is none; the message lists what is missing.
    """
    location = present(name, train, root)
    if location is not None:
        return location
    options = list(locations(name, train, root))
    nearest = max(options, key=lambda location: sum(path.is_file() for path, _ in location.files))
    missing = [str(path) for path, _ in nearest.files if not path.is_file()]
    others = sorted({str(o.files[0][0].relative_to(root)) for o in options if o is not nearest})
    raise DataError(
        f"{name}: expected {', '.join(missing)}, found no such file, nor the set in another form "
        f"({', '.join(others)} below {root}); run `atlas data fetch {name}`, or name the folder that holds "
        f"the set with --root or {ENVIRONMENT}"
    )


def verify(name: str, root: Path) -> Iterator[tuple[Path, File, str]]:
    """Each file that `load` would read for either half, with what is wrong with it ("" if nothing is)."""
    located = [pair for train in (True, False) for pair in find(name, train, root).files]
    for path, file in dict.fromkeys(located):
        try:
            yield path, file, file.mismatch(path.read_bytes())
        except OSError as error:
            yield path, file, f"cannot be read ({error.strerror})"


def _below(folder: Path, files: tuple[File, ...]) -> Located:
    return tuple((folder / file.name, file) for file in files)


_BROKEN: tuple[type[Exception], ...] = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError)
_BROKEN += (ValueError, RecursionError, MemoryError)
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
