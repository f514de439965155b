"""Where the files of a named data set lie, and their tested content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from atlas.data.archive import gunzip, untar
from atlas.data.files import File
from atlas.data.sources import Form, Source
from atlas.errors import DataError

ENVIRONMENT = "ATLAS_DATA"


def data_root(root: Path | str | None = None) -> Path:
    """The folder of the data sets: the argument, else $ATLAS_DATA, else ~/.cache/atlas."""
    return Path(root or os.environ.get(ENVIRONMENT) or "~/.cache/atlas").expanduser()


@dataclass(frozen=True)
class Place:
    """One way in which half of a data set can lie on the disk: which files, and how to get the content."""

    form: Form
    paths: tuple[Path, ...]
    read: Callable[[], list[bytes]]


def places(source: Source, train: bool, root: Path) -> Iterator[Place]:
    """Every way in which this half could be there, the one that is fastest to read first."""
    for form in source.forms:
        half = form.train if train else form.test
        yield _open(form, half, root / form.folder)
        if form.gz:
            yield _gzipped(
                form, half, form.gz[: len(half)] if train else form.gz[-len(half) :], root / form.folder
            )
        if form.tar:
            yield _tarred(form, half, form.tar, root)


def find(name: str, source: Source, train: bool, root: Path) -> Place:
    """The first place where all files are there."""
    options = list(places(source, train, root))
    for place in options:
        if all(path.is_file() for path in place.paths):
            return place
    started = max(options, key=lambda place: sum(path.is_file() for path in place.paths))
    missing = [str(path) for path in started.paths if not path.is_file()]
    others = sorted({str(place.paths[0].relative_to(root)) for place in options if place is not started})
    raise DataError(
        f"{name}: expected {', '.join(missing)}, found no such file, nor the set in another form "
        f"({', '.join(others)} below {root}); run `atlas data fetch {name}`, or name the folder that holds "
        f"the set with --root or {ENVIRONMENT}"
    )


def _open(form: Form, half: tuple[File, ...], folder: Path) -> Place:
    return Place(
        form, tuple(folder / file.name for file in half), lambda: [file.read(folder) for file in half]
    )


def _gzipped(form: Form, half: tuple[File, ...], packed: tuple[File, ...], folder: Path) -> Place:
    def read() -> list[bytes]:
        pairs = zip(packed, half, strict=True)
        return [gunzip(pack.read(folder), file, str(folder / pack.name)) for pack, file in pairs]

    return Place(form, tuple(folder / file.name for file in packed), read)


def _tarred(form: Form, half: tuple[File, ...], tar: File, root: Path) -> Place:
    def read() -> list[bytes]:
        return untar(tar.read(root), form.folder, half, form.train + form.test, str(root / tar.name))

    return Place(form, (root / tar.name,), read)
