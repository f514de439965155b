"""The table of named sets, the embedded set, and the real MNIST where it is here."""

from __future__ import annotations

import hashlib
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atlas.data import load
from atlas.data.readers import PARSERS, format_idx, parse_idx, safe_unpickle
from atlas.data.store import EMBEDDED, SOURCES, File, Form, home

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "atlas" / "data"
FORMS = [(name, form) for name, source in SOURCES.items() for form in source.forms]


def files(form: Form) -> list[File]:
    return [*form.train, *form.test, *form.gz, *([form.tar] if form.tar else [])]


def test_the_sets_of_the_paper_and_their_neighbours_are_there() -> None:
    assert list(SOURCES) == ["mnist-mini", "mnist", "fashion-mnist", "cifar10", "cifar100"]
    assert [source.num_classes for source in SOURCES.values()] == [10, 10, 10, 10, 100]
    assert [len(set(source.class_names)) for source in SOURCES.values()] == [0, 0, 10, 10, 100]


@pytest.mark.parametrize(
    ("name", "file", "key"),
    [
        ("cifar10", "cifar-10-batches-py/batches.meta", "label_names"),
        ("cifar100", "cifar-100-python/meta", "fine_label_names"),
    ],
)
def test_classes_are_called_as_the_publishers_call_them(name: str, file: str, key: str) -> None:
    if not (home() / file).is_file():
        pytest.skip(f"{name} is not here with its names: set ATLAS_DATA to a folder with {file}")
    published = safe_unpickle((home() / file).read_bytes())
    assert SOURCES[name].class_names == tuple(text.replace("_", " ") for text in published[key])


@pytest.mark.parametrize("name", [name for name in SOURCES if name != EMBEDDED])
def test_every_set_has_two_mirrors_and_all_are_https(name: str) -> None:
    mirrors = SOURCES[name].mirrors
    assert len({mirror.split("/")[2] for mirror in mirrors}) >= 2
    assert all(re.fullmatch(r"https://[^/]+/(.+/)?", mirror) for mirror in mirrors)


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_every_file_has_a_name_a_length_and_a_digest(name: str, form: Form) -> None:
    assert form.parser in PARSERS
    assert form.gz == () or len(form.gz) == len(form.train) + len(form.test)
    for file in files(form):
        assert Path(file.name).name == file.name
        assert file.size > 0
        assert re.fullmatch(r"[0-9a-f]{32}", file.md5 or "0" * 32)
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256 or "0" * 64)
        assert file.md5 or file.sha256
    for raw, packed in zip([*form.train, *form.test], form.gz, strict=False):
        assert packed.name == f"{raw.name}.gz"


@pytest.mark.parametrize("name", [name for name in SOURCES if name != EMBEDDED])
def test_what_is_fetched_has_a_sha256(name: str) -> None:
    form = SOURCES[name].forms[0]
    assert all(file.sha256 for file in (form.gz or (form.tar,)) if file)


def test_the_embedded_set_is_small_and_named_by_its_digest() -> None:
    tar = SOURCES[EMBEDDED].forms[0].tar
    assert tar is not None
    data = (PACKAGE / tar.name).read_bytes()
    assert len(data) <= 1_500_000
    assert hashlib.sha256(data).hexdigest() == tar.sha256
    note = (PACKAGE / "mnist_mini.txt").read_text(encoding="utf-8")
    assert all(words in note for words in (tar.sha256, "CC BY-SA 3.0", "LeCun", "Cortes", "Burges"))


def test_the_embedded_set_needs_no_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATLAS_DATA", str(tmp_path / "nowhere"))
    train, test = load("mnist-mini"), load("mnist-mini", train=False, root=tmp_path)
    assert train.y.bincount().tolist() == [800] * 10
    assert test.y.bincount().tolist() == [200] * 10
    assert train.shape == test.shape == (1, 28, 28)
    assert len({*train.y[:20].tolist()}) > 5  # the classes are mixed, so that the first n are a fair sample
    both = torch.cat([train.x, test.x]).flatten(1).numpy()
    assert len(np.unique(both, axis=0)) == 10000


@pytest.mark.parametrize("train", [True, False])
def test_real_mnist(data_root: Path, train: bool) -> None:
    images = load("mnist", train, data_root)
    assert images.x.shape == (60000 if train else 10000, 1, 28, 28)
    if train:
        (mean,), (std,) = images.stats()
        assert (round(mean, 4), round(std, 4)) == (0.1307, 0.3081)
        assert images.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]


def test_the_embedded_set_can_be_made_again_from_the_real_one(data_root: Path) -> None:
    script: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "make_mnist_mini.py"))
    made = script["contents"](data_root)
    form = SOURCES[EMBEDDED].forms[0]
    for file in form.train + form.test:
        assert file.mismatch(made[file.name]) == ""
    for train in (True, False):
        small, full = load(EMBEDDED, train), load("mnist", train, data_root)
        known = {image.numpy().tobytes(): int(label) for image, label in zip(full.x, full.y, strict=True)}
        assert all(known[x.numpy().tobytes()] == y for x, y in zip(small.x, small.y.tolist(), strict=True))


def test_idx_round_trip() -> None:
    array = torch.arange(60, dtype=torch.uint8).view(3, 4, 5)
    assert format_idx(array)[:16] == bytes([0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5])
    assert torch.equal(parse_idx(format_idx(array), 3), array)
