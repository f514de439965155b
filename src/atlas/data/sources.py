"""The data sets that have a name, read from the table in sources.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.data.files import File

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
    for name, row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
