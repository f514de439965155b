"""Archives are unpacked in memory, and only when they are the published ones to the bit."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from atlas.data import load
from atlas.errors import DataError


def hostile(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.size, info.type, info.linkname = 4, kind, link
        tar.addfile(info, io.BytesIO(b"harm"))
    return raw.getvalue()


@pytest.mark.parametrize(
    "archive",
    [
        hostile("../evil"),
        hostile("/evil"),
        hostile("toy-py/one", tarfile.SYMTYPE, "/etc/passwd"),
        gzip.compress(bytes(10_000_000)) * 10,
        b"no archive",
    ],
    ids=["outside", "absolute", "link", "bomb", "no archive"],
)
def test_an_archive_that_is_not_the_published_one_is_not_opened(
    cifar_toy: Any, tmp_path: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cifar_toy.write("python-tar")[0]
    for length in (len(archive), path.stat().st_size):  # of its own length, and of that of the published one
        path.write_bytes(archive[:length].ljust(length, b"\0"))
        before = sorted(tmp_path.rglob("*"))
        monkeypatch.setattr(tarfile, "open", None)
        with pytest.raises(DataError, match=r"toy-py\.tar\.gz: expected (\d+ bytes|sha256)"):
            load("cifar-toy", True, cifar_toy.root)
        assert sorted(tmp_path.rglob("*")) == before


def test_nothing_is_written_where_an_archive_is_read(cifar_toy: Any, snapshot: Any) -> None:
    cifar_toy.write("python-tar")
    before = snapshot()
    assert cifar_toy.holds(load("cifar-toy", True, cifar_toy.root), True)
    assert snapshot() == before
