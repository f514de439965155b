"""Named data sets: where their files lie, and their verified content.

The length and the digest of every file are checked before anything in it is unpacked or parsed, and archives
are read in memory, never extracted to disk.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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

    def read(self, path: Path) -> bytes:
        """The content of `path`, its length checked before it is read and its digest after."""
        try:
            size = path.stat().st_size
            data = path.read_bytes() if size == self.size else b""
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); {GET_AGAIN}") from error
        wrong = f"expected {self.size} bytes, found {size}" if size != self.size else self.mismatch(data)
        if wrong:
            raise DataError(f"{path}: {wrong}; {GET_AGAIN}")
        return data


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


def home(root: Path | str | None = None) -> Path:
    """The folder of the data sets: the argument, else $ATLAS_DATA, else ~/.cache/atlas."""
    return at_home(root or os.environ.get(ENVIRONMENT) or "~/.cache/atlas")


def at_home(path: Path | str) -> Path:
    """The path with ~ and ~USER filled in; unlike `Path.expanduser`, an unknown USER is left as it is."""
    return Path(os.path.expanduser(path))


def data_root(name: str, root: Path | str | None = None) -> Path:
    """The folder where this set is looked for: the data sets' folder, or the package for the embedded one."""
    return Path(__file__).parent if name == EMBEDDED else home(root)


@dataclass(frozen=True)
class Location:
    """One way to store half of a data set: open files, each compressed, or all in an archive."""

    form: Form
    half: tuple[File, ...]
    files: tuple[tuple[Path, File], ...]

    def exists(self) -> bool:
        return all(path.is_file() for path, _ in self.files)

    def read(self) -> list[bytes]:
        """The uncompressed, verified content of each file of this half."""
        blobs = [file.read(path) for path, file in self.files]
        if self.files[0][1] is self.form.tar:
            return self._members(blobs[0])
        return [
            gzip.decompress(blob) if file in self.form.gz else blob
            for blob, (_, file) in zip(blobs, self.files, strict=True)
        ]

    def _members(self, archive: bytes) -> list[bytes]:
        names = [f"{self.form.folder}/{file.name}".lstrip("/") for file in self.half]
        found = {}
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:  # in their order: to go back would unpack it all again
                content = tar.extractfile(member) if member.name in names else None
                if content is not None:
                    found[member.name] = content.read()
        return [found[name] for name in names]


def locations(name: str, train: bool, root: Path) -> Iterator[Location]:
    """Every way in which this half could be stored, in each form the fastest to read first."""
    for form in choose("data set", name, SOURCES).forms:
        half, folder = (form.train if train else form.test), root / form.folder
        yield Location(form, half, tuple((folder / file.name, file) for file in half))
        if form.gz:
            packed = form.gz[: len(half)] if train else form.gz[-len(half) :]
            yield Location(form, half, tuple((folder / file.name, file) for file in packed))
        if form.tar:
            yield Location(form, half, ((root / form.tar.name, form.tar),))


def present(name: str, train: bool, root: Path) -> Location | None:
    """The first location where all files of this half exist, verified or not."""
    return next((location for location in locations(name, train, root) if location.exists()), None)


def find(name: str, train: bool, root: Path) -> Location:
    """The first location where all files of this half exist; else an error that lists what is missing."""
    if location := present(name, train, root):
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
