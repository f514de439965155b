"""Archives made to do harm: nothing is written, nothing but the listed members is read, nothing grows."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import tarfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atlas.data.store import File, gunzip, untar
from atlas.errors import DataError

GOOD = os.urandom(5000)
FILE = File("wanted", len(GOOD), sha256=hashlib.sha256(GOOD).hexdigest())
OTHER = File("other", 3, sha256=hashlib.sha256(b"abc").hexdigest())
# Compressed streams may be joined: 200 of these unpack to 2 GB of zeros.
ZEROS = gzip.compress(bytes(10_000_000))
BOMB = 200


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, link
    return info, data


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return raw.getvalue()


def read(tar: bytes, *wanted: File, where: str = "set.tar.gz") -> list[bytes]:
    return untar(gzip.compress(tar), "folder", wanted or (FILE,), (FILE, OTHER), where)


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test here runs in a folder of its own, and leaves it empty."""
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    yield
    assert list(tmp_path.rglob("*")) == [inside]


def test_members_come_in_the_order_asked_for() -> None:
    tar = tar_of(
        member("folder/wanted", GOOD), member("folder/readme", b"hello"), member("folder/other", b"abc")
    )
    assert read(tar, OTHER, FILE) == [b"abc", GOOD]


def test_xz_is_read_too() -> None:
    packed = lzma.compress(tar_of(member("wanted", GOOD)))
    assert untar(packed, "", (FILE,), (FILE,), "set.tar.xz") == [GOOD]


@pytest.mark.parametrize("name", ["../evil", "/evil", "folder/../../evil", "folder/evil", "./folder/../evil"])
def test_members_that_nobody_asked_for_are_passed_over(name: str) -> None:
    assert read(tar_of(member(name, b"harm"), member("folder/wanted", GOOD))) == [GOOD]


@pytest.mark.parametrize(
    "name", ["../folder/wanted", "/folder/wanted", "folder/./wanted", "folder/wanted/x", "wanted"]
)
def test_a_name_that_only_resembles_the_wanted_one_is_not_it(name: str) -> None:
    with pytest.raises(DataError, match="expected the members folder/wanted, found none of that name"):
        read(tar_of(member(name, GOOD)))


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.SYMTYPE, "other"),
        (tarfile.LNKTYPE, "folder/other"),
        (tarfile.CHRTYPE, ""),
        (tarfile.FIFOTYPE, ""),
        (tarfile.DIRTYPE, ""),
    ],
)
def test_links_and_special_files_are_refused(kind: bytes, link: str) -> None:
    tar = tar_of(member("folder/other", b"abc"), member("folder/wanted", kind=kind, link=link))
    with pytest.raises(DataError, match="expected a plain file, found a link or a special one"):
        read(tar)


def test_a_sparse_member_is_refused() -> None:
    """A pax header can claim that a few bytes are a file of any length full of holes."""
    info, data = member("folder/wanted", b"1\n0\n3\nabc".ljust(512, b"\0") + b"abc")
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "folder/wanted",
        "GNU.sparse.realsize": str(FILE.size),
    }
    with pytest.raises(DataError, match="expected"):
        read(tar_of((info, data)))


@pytest.mark.parametrize("size", [0, FILE.size - 1, FILE.size + 1, 1_000_000])
def test_a_member_of_another_length_is_refused_unread(size: int) -> None:
    """The archive ends after the header: whoever tried to read on would see that it is not whole."""
    info, _ = member("folder/wanted")
    info.size = size
    with pytest.raises(DataError, match=f"folder/wanted: expected 5000 bytes, found {size}"):
        read(info.tobuf())


def test_a_member_with_other_bytes_is_refused() -> None:
    with pytest.raises(DataError, match=r"folder/wanted: expected sha256 .*, found"):
        read(tar_of(member("folder/wanted", GOOD[::-1])))


@pytest.mark.parametrize("damage", ["cut tar", "cut gzip", "not gzip", "not tar", "crc"])
def test_a_broken_archive_is_an_error_of_data(damage: str) -> None:
    tar = tar_of(member("folder/wanted", GOOD))
    packed = gzip.compress(tar)
    broken = {
        "cut tar": gzip.compress(tar[:3000]),
        "cut gzip": packed[: len(packed) // 2],
        "not gzip": tar,
        "not tar": gzip.compress(GOOD),
        "crc": packed[:2000] + bytes([packed[2000] ^ 1]) + packed[2001:],
    }[damage]
    with pytest.raises(DataError, match=r"expected|not a whole archive"):
        untar(broken, "folder", (FILE,), (FILE,), "set.tar.gz")


def test_a_tar_bomb_is_stopped_at_the_length_that_the_set_should_have() -> None:
    info, _ = member("folder/huge")
    info.size = 10_000_000 * BOMB
    packed = gzip.compress(info.tobuf()) + ZEROS * BOMB
    with memory_below(30_000_000), pytest.raises(DataError, match="unpacks to more than"):
        untar(packed, "folder", (FILE,), (FILE, OTHER), "set.tar.gz")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_claims_gigabytes_is_stopped(kind: bytes) -> None:
    """tarfile reads such a header into memory as a whole."""
    info, _ = member("folder/wanted", kind=kind)
    info.size = 10_000_000 * BOMB
    packed = gzip.compress(info.tobuf()) + ZEROS * BOMB
    with (
        memory_below(30_000_000),
        pytest.raises(DataError, match="unpacks to more than the 1053579 bytes expected"),
    ):
        untar(packed, "folder", (FILE,), (FILE, OTHER), "set.tar.gz")


def test_gunzip_gives_the_file() -> None:
    assert gunzip(gzip.compress(GOOD), FILE, "wanted.gz") == GOOD


def test_a_gzip_bomb_is_stopped_one_byte_behind_the_end() -> None:
    with memory_below(30_000_000), pytest.raises(DataError, match="expected 5000 bytes, found 5001"):
        gunzip(ZEROS * BOMB, FILE, "wanted.gz")


@pytest.mark.parametrize("data", [b"", b"no gzip", gzip.compress(GOOD)[:-9], gzip.compress(GOOD)[:-1]])
def test_a_broken_gzip_is_an_error_of_data(data: bytes) -> None:
    with pytest.raises(DataError, match=r"wanted\.gz"):
        gunzip(data, FILE, "wanted.gz")


def test_gzip_of_other_content_is_refused() -> None:
    with pytest.raises(DataError, match=r"wanted\.gz, unpacked: expected sha256"):
        gunzip(gzip.compress(GOOD[::-1]), FILE, "wanted.gz")
