"""Named sets in every form that they can have on disk, whole and damaged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from atlas.data import load
from atlas.data.store import verify
from atlas.errors import DataError, UsageError

IDX_FORMS = ["open", "gz"]
CIFAR_FORMS = ["python", "python-tar", "binary", "binary-tar"]


@pytest.mark.parametrize("form", IDX_FORMS)
@pytest.mark.parametrize("train", [True, False])
def test_idx_is_read_raw_and_compressed(idx_toy: Any, form: str, train: bool) -> None:
    idx_toy.write(form)
    images = load("idx-toy", train, idx_toy.root)
    assert idx_toy.holds(images, train)
    assert (images.name, images.num_classes, images.shape) == ("idx-toy", 10, (1, 5, 4))


@pytest.mark.parametrize("form", CIFAR_FORMS)
@pytest.mark.parametrize("train", [True, False])
def test_cifar_is_read_in_both_versions_packed_and_open(cifar_toy: Any, form: str, train: bool) -> None:
    cifar_toy.write(form)
    assert cifar_toy.holds(load("cifar-toy", train, cifar_toy.root), train)


def test_a_half_is_enough_for_itself(idx_toy: Any) -> None:
    for path in idx_toy.write("open")[2:]:
        path.unlink()
    assert idx_toy.holds(load("idx-toy", True, idx_toy.root), True)
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte"):
        load("idx-toy", False, idx_toy.root)


def test_a_form_that_is_whole_is_preferred_to_one_that_is_not(idx_toy: Any) -> None:
    idx_toy.write("gz")
    idx_toy.write("open")[0].unlink()
    assert idx_toy.holds(load("idx-toy", True, idx_toy.root), True)


def damaged(data: bytes, how: str) -> bytes:
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return {"cut": data[:-1], "grown": data + b"\0", "flipped": flipped, "emptied": b""}[how]


@pytest.mark.parametrize("how", ["cut", "grown", "flipped", "emptied"])
@pytest.mark.parametrize("form", IDX_FORMS)
@pytest.mark.parametrize("which", [0, 1])
def test_damaged_idx_is_refused_and_left_alone(
    idx_toy: Any, snapshot: Any, form: str, which: int, how: str
) -> None:
    path = idx_toy.write(form)[which]
    path.write_bytes(damaged(path.read_bytes(), how))
    before = snapshot()
    with pytest.raises(DataError) as caught:
        load("idx-toy", True, idx_toy.root)
    words = str(caught.value)
    assert all(word in words for word in (str(path), "expected", "found", "nothing was changed"))
    assert ("sha256" in words) == (how == "flipped")
    assert caught.value.exit_code == 3
    assert snapshot() == before


@pytest.mark.parametrize("how", ["cut", "grown", "flipped", "emptied"])
@pytest.mark.parametrize("form", CIFAR_FORMS)
def test_damaged_cifar_is_refused_and_left_alone(cifar_toy: Any, snapshot: Any, form: str, how: str) -> None:
    path = cifar_toy.write(form)[0]
    path.write_bytes(damaged(path.read_bytes(), how))
    before = snapshot()
    with pytest.raises(DataError, match=f"{path.name}: expected .*, found"):
        load("cifar-toy", True, cifar_toy.root)
    assert snapshot() == before


def test_a_file_that_is_absurdly_long_is_refused_unread(idx_toy: Any) -> None:
    path = idx_toy.write("open")[0]
    os.truncate(path, 1 << 42)  # a hole: it takes no space on the disk
    with pytest.raises(DataError, match="expected 616 bytes, found 4398046511104"):
        load("idx-toy", True, idx_toy.root)


def test_nothing_there_says_what_was_looked_for_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("cifar10", root=tmp_path)
    for words in (
        "data_batch_1",
        "cifar-10-python.tar.gz",
        "cifar-10-binary.tar.gz",
        "atlas data fetch cifar10",
    ):
        assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_is_an_error_of_data(idx_toy: Any) -> None:
    path = idx_toy.write("open")[0]
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="idx-toy: expected"):
        load("idx-toy", True, idx_toy.root)


def test_the_root_comes_from_the_environment(idx_toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    idx_toy.write("gz")
    monkeypatch.setenv("ATLAS_DATA", str(idx_toy.root))
    assert idx_toy.holds(load("idx-toy"), True)
    monkeypatch.delenv("ATLAS_DATA")
    monkeypatch.setenv("HOME", str(idx_toy.root.parent))
    with pytest.raises(DataError, match=str(idx_toy.root.parent / ".cache" / "atlas")):
        load("idx-toy")
    shutil.copytree(idx_toy.root, idx_toy.root.parent / ".cache" / "atlas")
    assert idx_toy.holds(load("idx-toy"), True)


def test_verify_names_each_bad_file(idx_toy: Any) -> None:
    paths = idx_toy.write("open")
    assert [problem for _, _, problem in verify("idx-toy", idx_toy.root)] == [""] * 4
    paths[1].write_bytes(damaged(paths[1].read_bytes(), "flipped"))
    paths[2].write_bytes(b"short")
    found = {path: problem for path, _, problem in verify("idx-toy", idx_toy.root)}
    assert [bool(found[path]) for path in paths] == [False, True, True, False]
    assert found[paths[2]].endswith("found 5")


def test_a_wrong_name_offers_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'cifar10'"):
        load("cifar-10")


def test_a_part_of_a_named_set_has_its_first_training_images_and_all_for_the_test(idx_toy: Any) -> None:
    idx_toy.write("open")
    whole, part = load("idx-toy", True, idx_toy.root), load("idx-toy:3", True, idx_toy.root)
    assert len(part) == 3 < len(whole)
    assert torch.equal(part.x, whole.x[:3])
    assert torch.equal(part.ids, whole.ids[:3])
    assert part.name == "idx-toy"
    assert idx_toy.holds(load("idx-toy:3", False, idx_toy.root), False)


@pytest.mark.parametrize("count", ["", "0", "-1", "x", "1.5", "100000"])
def test_a_part_wants_a_number_of_images_that_are_there(idx_toy: Any, count: str) -> None:
    idx_toy.write("open")
    with pytest.raises(DataError, match=r"must be NAME:N|there are \d+ training images"):
        load(f"idx-toy:{count}", True, idx_toy.root)


@pytest.mark.parametrize("path", ["no/such/folder", "missing.npz", Path("mnist-mini")])
def test_a_path_that_is_not_there_is_an_error_of_data(path: str | Path) -> None:
    with pytest.raises(
        DataError, match=r"expected an \.npz file or a folder of class folders.*, found nothing"
    ):
        load(path)


def test_another_file_is_not_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2,3")
    with pytest.raises(DataError, match="found another kind of file"):
        load(tmp_path / "data.csv")
