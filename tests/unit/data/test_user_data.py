"""Custom .npz files and folders of images."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from atlas.data import load
from atlas.errors import DataError

X = np.random.default_rng(0).integers(0, 256, (12, 3, 6, 5), dtype=np.uint8)
Y = np.array([0, 1, 2] * 4)


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path / "set.npz", **arrays)
    return path / "set.npz"


def test_an_npz_with_both_halves(tmp_path: Path) -> None:
    path = saved(tmp_path, x_train=X[:8], y_train=Y[:8], x_test=X[8:], y_test=Y[8:] + 2)
    for train, rows, shift in ((True, slice(0, 8), 0), (False, slice(8, 12), 2)):
        images = load(path, train)
        assert np.array_equal(images.x.numpy(), X[rows])
        assert np.array_equal(images.y.numpy(), Y[rows] + shift)
        assert images.num_classes == 5  # the largest label of both halves
        assert images.name == "set.npz"


def test_an_npz_without_halves_is_for_training(tmp_path: Path) -> None:
    path = saved(tmp_path, x=X.astype(np.float64) / 255, y=Y)
    assert np.array_equal(load(str(path)).x.numpy(), (X.astype(np.float64) / 255).astype(np.float32))
    with pytest.raises(
        DataError, match=r"expected arrays x_test and y_test, found x, y; save the set with np\.savez"
    ):
        load(path, train=False)


@pytest.mark.parametrize("arrays", [{}, {"x_train": X}, {"x": X}, {"images": X, "labels": Y}])
def test_an_npz_without_the_arrays_says_which(tmp_path: Path, arrays: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="expected arrays x"):
        load(saved(tmp_path, **arrays))


def test_wrong_content_is_refused_as_everywhere(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must be finite and in"):
        load(saved(tmp_path, x=X.astype(np.float32), y=Y))
    with pytest.raises(DataError, match="labels from -1"):
        load(saved(tmp_path, x=X, y=Y - 1))
    with pytest.raises(DataError, match="y must"):
        load(saved(tmp_path, x=X, y=Y[:0]))
    with pytest.raises(DataError, match="must hold numbers"):
        load(saved(tmp_path, x=X, y=np.array(["cat"] * 12)))
    with pytest.raises(DataError, match="must be integer labels"):
        load(saved(tmp_path, x=X, y=Y / 2))


class Touch:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.canary}'",)


@pytest.mark.parametrize("name", ["x", "y"])
def test_an_npz_of_objects_is_refused_and_runs_nothing(tmp_path: Path, name: str) -> None:
    canary = tmp_path / "canary"
    path = saved(tmp_path, **{"x": X, "y": Y, name: np.array([Touch(canary)] * 12, dtype=object)})
    with pytest.raises(DataError, match=r"not an \.npz file of plain arrays"):
        load(path)
    assert not canary.exists()
    unsafe = "import sys, numpy; numpy.load(sys.argv[1], allow_pickle=True)[sys.argv[2]]"
    subprocess.run([sys.executable, "-c", unsafe, str(path), name], check=True)
    assert canary.exists()


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "empty", "npy", "pickle"])
def test_a_broken_npz_is_an_error_of_data(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "set.npz"
    np.savez_compressed(path, x=X, y=Y)
    whole = path.read_bytes()
    npy = io.BytesIO()
    np.save(npy, X)
    broken = {
        "cut": whole[:-200],
        "flipped": whole[:400] + bytes(100) + whole[500:],
        "text": b"hello",
        "empty": b"",
        "npy": npy.getvalue(),
        "pickle": b"\x80\x04N.",
    }
    path.write_bytes(broken[damage])
    with pytest.raises(DataError, match=r"not an \.npz file of plain arrays"):
        load(path)


def test_an_npz_whose_header_claims_a_petabyte_is_an_error_of_data(tmp_path: Path) -> None:
    path = saved(tmp_path, y=Y)
    header = io.BytesIO()
    lie = {"descr": "|u1", "fortran_order": False, "shape": (10**15, 1, 1)}
    np.lib.format.write_array_header_1_0(header, lie)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x.npy", header.getvalue() + b"few bytes")
    with pytest.raises(DataError, match=r"not an \.npz file of plain arrays"):
        load(path)


def write_images(folder: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> Path:
    for name, array in arrays.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)
    return folder


COLOUR = X.transpose(0, 2, 3, 1)
GRAY = X[:, 0]


def test_a_folder_of_class_folders(tmp_path: Path) -> None:
    folder = write_images(
        tmp_path / "pets",
        {"dog/b.png": COLOUR[0], "dog/a.PNG": COLOUR[1], "cat/1.bmp": COLOUR[2], "zebra/x.tiff": COLOUR[3]},
    )
    (folder / "dog" / "notes.txt").write_text("not an image")
    (folder / ".cache").mkdir()
    images = load(folder)
    assert images.y.tolist() == [0, 1, 2, 1], "classes take turns"
    assert np.array_equal(images.x.numpy(), X[[2, 1, 3, 0]])
    assert (images.name, images.num_classes) == ("pets", 3)
    assert images.class_names == images.subset([1]).class_names == ("cat", "dog", "zebra")
    with pytest.raises(
        DataError, match=r"has no test set; move images to .*/train/CLASS and .*pets:test=0\.2"
    ):
        load(folder, train=False)


def test_a_folder_with_both_halves_counts_classes_by_the_training_images(tmp_path: Path) -> None:
    folder = write_images(
        tmp_path / "pets",
        {
            "train/a/1.png": COLOUR[0],
            "train/b/1.png": COLOUR[1],
            "train/c/1.png": COLOUR[2],
            "test/c/1.png": COLOUR[3],
        },
    )
    train, test = load(folder), load(folder, train=False)
    assert train.y.tolist() == [0, 1, 2]
    assert (test.y.tolist(), test.num_classes, test.class_names) == ([2], 3, ("a", "b", "c"))
    assert np.array_equal(test.x.numpy(), X[3:4])
    write_images(folder, {"test/d/1.png": COLOUR[4]})
    with pytest.raises(DataError, match=r"found classes that .*/train does not have: d"):
        load(folder, train=False)


def test_gray_images_stay_gray_unless_one_has_colour(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "gray", {"a/1.png": GRAY[0], "b/1.png": GRAY[1]})
    assert np.array_equal(load(folder).x.numpy(), GRAY[:2, None])
    write_images(folder, {"b/2.png": COLOUR[2]})
    expected = np.stack([np.repeat(GRAY[0][None], 3, 0), np.repeat(GRAY[1][None], 3, 0), X[2]])
    assert np.array_equal(load(folder).x.numpy(), expected)


def test_palette_alpha_and_black_and_white(tmp_path: Path) -> None:
    folder = tmp_path / "modes" / "a"
    folder.mkdir(parents=True)
    rgb = Image.fromarray(COLOUR[0])
    rgb.convert("RGBA").save(folder / "1.png")
    palette = rgb.convert("P")
    palette.save(folder / "2.png")
    Image.fromarray(GRAY[0] > 128).save(folder / "3.png")
    images = load(folder.parent)
    assert np.array_equal(images.x[0].numpy(), X[0])
    assert np.array_equal(images.x[1].numpy(), np.asarray(palette.convert("RGB")).transpose(2, 0, 1))
    assert np.array_equal(images.x[2, 0].numpy(), np.where(GRAY[0] > 128, 255, 0))


def test_photographs_are_turned_upright(tmp_path: Path) -> None:
    (tmp_path / "set" / "a").mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: turn by 90 degrees
    Image.fromarray(COLOUR[0]).save(tmp_path / "set" / "a" / "1.png", exif=exif)
    upright = np.rot90(COLOUR[0], -1).transpose(2, 0, 1)
    assert np.array_equal(load(tmp_path / "set").x[0].numpy(), upright)


def test_transparent_and_moving_images_are_refused(tmp_path: Path) -> None:
    """There is more than one way to read them, and the silent one may be the wrong one."""
    folder = tmp_path / "set" / "a"
    folder.mkdir(parents=True)
    first, second = (Image.fromarray(pixels) for pixels in COLOUR[:2])
    first.save(folder / "1.gif", save_all=True, append_images=[second])
    with pytest.raises(DataError, match=r"1\.gif: .*must be a single image, got 2 frames"):
        load(folder.parent)
    (folder / "1.gif").unlink()
    first.putalpha(100)
    first.save(folder / "1.png")
    with pytest.raises(DataError, match=r"1\.png: .*has transparent pixels"):
        load(folder.parent)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "set", {"a/1.png": COLOUR[0]})
    os.mkfifo(folder / "a" / "2.png")
    with pytest.raises(DataError, match=r"2\.png: expected a regular file"):
        load(folder)


def test_images_of_two_sizes_are_refused(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "sizes", {"a/1.png": COLOUR[0], "a/2.png": COLOUR[1][:4]})
    with pytest.raises(DataError, match=r"2\.png: 5x4 pixels where 1\.png has 5x6; resize all images"):
        load(folder)


def test_sixteen_bits_are_refused_and_not_cut(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "deep", {"a/1.png": GRAY[0].astype(np.uint16) * 256})
    with pytest.raises(DataError, match="must have 8 bits per channel"):
        load(folder)


@pytest.mark.parametrize("side", [5_000, 10_000])
def test_a_decompression_bomb_is_refused_undecoded(tmp_path: Path, side: int) -> None:
    """Megabytes in some kB, below and above the limit at which Pillow warns."""
    (tmp_path / "bomb" / "a").mkdir(parents=True)
    Image.new("1", (side, side)).save(tmp_path / "bomb" / "a" / "1.png")
    with pytest.raises(DataError, match=rf"1\.png: .*must have at most .* got {side}x{side}"):
        load(tmp_path / "bomb")


@pytest.mark.parametrize("kind", ["eps", "pcx"])
def test_a_format_off_the_list_is_refused_whatever_its_name(tmp_path: Path, kind: str) -> None:
    """EPS would start another program."""
    (tmp_path / "set" / "a").mkdir(parents=True)
    Image.fromarray(COLOUR[0]).save(tmp_path / f"1.{kind}")
    (tmp_path / f"1.{kind}").rename(tmp_path / "set" / "a" / "1.png")
    with pytest.raises(DataError, match=r"1\.png: cannot be used"):
        load(tmp_path / "set")


@pytest.mark.parametrize("kept", [0, 20, 60])
def test_a_cut_image_is_refused(tmp_path: Path, kept: int) -> None:
    folder = write_images(tmp_path / "cut", {"a/1.png": COLOUR[0]})
    data = (folder / "a" / "1.png").read_bytes()
    (folder / "a" / "1.png").write_bytes(data[:kept])
    with pytest.raises(DataError, match=r"1\.png: cannot be used: .*; repair or remove it"):
        load(folder)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match="expected images in class folders, found none"):
        load(tmp_path / "none")


def test_a_named_set_wins_over_a_folder_unless_it_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "mnist-mini", {"a/1.png": COLOUR[0]})
    monkeypatch.chdir(tmp_path)
    assert len(load("mnist-mini")) == 8000
    assert len(load("./mnist-mini")) == 1
    assert len(load(Path("mnist-mini"))) == 1


# --- a part held out as test images ---


def test_a_share_of_each_class_is_set_apart(tmp_path: Path) -> None:
    y = np.repeat([0, 1, 2], [50, 10, 5])
    x = np.arange(65, dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
    np.savez(tmp_path / "flat.npz", x=x, y=y)
    train, test = (load(f"{tmp_path}/flat.npz:test=0.2", half) for half in (True, False))
    assert test.y.bincount().tolist() == [10, 2, 1]
    assert train.num_classes == test.num_classes == 3
    assert sorted([*train.ids.tolist(), *test.ids.tolist()]) == list(range(65))
    assert test.x[:, 0, 0, 0].tolist() == test.ids.tolist(), "images and labels stay together"
    assert test.ids.tolist() == load(f"{tmp_path}/flat.npz:test=0.2", False).ids.tolist()
    assert load(f"{tmp_path}/flat.npz:test=1/5", False).fingerprint() == test.fingerprint()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mnist-mini:test=0.2", "mnist-mini has a test set: omit :test=0.2"),
        ("whole.npz:test=0.2", "whole.npz has a test set"),
        ("flat.npz:test=0", "must be between 0 and 1, got 0"),
        ("flat.npz:test=1.5", "must be between 0 and 1, got 1.5"),
        ("flat.npz:test=0.01", "leaves none to test"),
        ("flat.npz:test=0.99", "leaves none to test or none to train on"),
        ("nowhere.npz:test=0.2", "found nothing"),
    ],
)
def test_what_cannot_be_set_apart(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((6, 4, 4), np.uint8), np.arange(6) % 3
    np.savez("flat.npz", x=x, y=y)
    np.savez("whole.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(DataError, match=words):
        load(name, False)
