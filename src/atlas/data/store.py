"""Where the files of a named data set lie, and their tested content."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from atlas.data.archive import File, gunzip, untar
from atlas.errors import DataError, choose

EMBEDDED = "mnist-mini"


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


def _files(rows: Iterable[Mapping[str, Any]]) -> tuple[File, ...]:
    return tuple(File(**row) for row in rows)


def _form(row: Mapping[str, Any]) -> Form:
    tar = File(**row["tar"]) if "tar" in row else None
    halves = _files(row["train"]), _files(row["test"]), _files(row.get("gz", ()))
    return Form(row["parser"], row["folder"], *halves, tar)


def _source(row: Mapping[str, Any]) -> Source:
    forms = tuple(_form(form) for form in row["forms"])
    mirrors, class_names = (tuple(row.get(key, ())) for key in ("mirrors", "class_names"))
    return Source(row["about"], row["licence"], row["num_classes"], forms, mirrors, class_names)


SOURCES: Mapping[str, Source] = {
    name: _source(row)
    for name, row in tomllib.loads(Path(__file__).with_name("sources.toml").read_text("utf-8")).items()
}


ENVIRONMENT = "ATLAS_DATA"

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
class Place:
    """One way in which half of a data set can lie on the disk: its files, and how they are unpacked."""

    form: Form
    files: Located
    unpack: Callable[[list[bytes]], list[bytes]]

    def is_there(self) -> bool:
        return all(path.is_file() for path, _ in self.files)

    def read(self) -> list[bytes]:
        """The open content of each file of this half, tested."""
        return self.unpack([file.read(path) for path, file in self.files])


def places(name: str, train: bool, root: Path) -> Iterator[Place]:
    """Every way in which this half could be there, the one that is fastest to read first in each form."""
    for form in choose("data set", name, SOURCES).forms:
        half, folder = (form.train if train else form.test), root / form.folder
        yield Place(form, _below(folder, half), list)
        if form.gz:
            packed = _below(folder, form.gz[: len(half)] if train else form.gz[-len(half) :])
            yield Place(form, packed, partial(_gunzipped, half, packed))
        if form.tar:
            yield Place(form, _below(root, (form.tar,)), partial(_untarred, form, half, root / form.tar.name))


def present(name: str, train: bool, root: Path) -> Place | None:
    """The first place where all files of this half are there, tested or not."""
    return next((place for place in places(name, train, root) if place.is_there()), None)


def find(name: str, train: bool, root: Path) -> Place:
    """The first place where all files of this half are there, or an error that says what is missing."""
    place = present(name, train, root)
    if place is not None:
        return place
    options = list(places(name, train, root))
    nearest = max(options, key=lambda place: sum(path.is_file() for path, _ in place.files))
    missing = [str(path) for path, _ in nearest.files if not path.is_file()]
    others = sorted({str(place.files[0][0].relative_to(root)) for place in options if place is not nearest})
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


def _gunzipped(half: tuple[File, ...], packed: Located, blobs: list[bytes]) -> list[bytes]:
    triples = zip(blobs, half, packed, strict=True)
    return [gunzip(blob, file, str(path)) for blob, file, (path, _) in triples]


def _untarred(form: Form, half: tuple[File, ...], path: Path, blobs: list[bytes]) -> list[bytes]:
    return untar(blobs[0], form.folder, half, form.train + form.test, str(path))
