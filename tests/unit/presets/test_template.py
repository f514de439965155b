"""Configurations as commented TOML: the same settings again, every one explained, within 80 columns."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atlas import presets
from atlas.data import Images
from atlas.presets.template import COMMENTS, SECTIONS, WIDTH, commented
from atlas.training import RunConfig
from atlas.training.run import MeanStd

LONGEST_COMMENT = WIDTH - 27 - 4


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_is_printed_whole_and_fits_a_terminal(name: str) -> None:
    text = presets.explained(name)
    assert tomllib.loads(text) == presets.load_preset(name)[1]
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.startswith(f"# {presets.description(name)[:40]}")


def test_comments_of_the_presets_that_it_extends_are_kept() -> None:
    text = presets.explained("mnist-quick-atlas-1")
    assert "# _mnist-quick: MNIST on the small CNN in minutes" in text
    assert "# _mnist: What all MNIST rows of Table 1 share" in text
    assert 'kind = "one-cycle"           # guided, constant,' in text
    assert "# ema = 0.0                  # decay of" in text, "what is left at its default"


def test_every_setting_is_explained_beside_it() -> None:
    kinds = {section: kind for section, kind in SECTIONS.items() if kind is not None}
    known = {f"{section}.{f.name}".lstrip(".") for section, kind in kinds.items() for f in fields(kind)}
    assert known <= {*COMMENTS, *SECTIONS}
    settings = {key: text for key, text in COMMENTS.items() if key not in SECTIONS}
    assert not [text for text in settings.values() if len(text) > LONGEST_COMMENT]


@pytest.mark.parametrize(
    "table",
    [
        {"data": 'a "b" \\ c\n\x7f é 😀', "normalize": {"mean": [0.5, 1], "std": [1e-07, float("inf")]}},
        {"method": {"name": "mine:Net", "weird key": True, "attack": {"name": "pgd", "steps": 2, "a.b": []}}},
        {},
    ],
)
def test_values_of_any_kind_come_back(table: dict[str, Any]) -> None:
    found = tomllib.loads(commented(table, ["a\nheading\x00"]))
    assert found.pop("training") == {"optimizer": {}, "schedule": {}, "validation": {}}, "all at its defaults"
    assert found == table


def test_a_file_of_a_user_is_printed_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('# many words\nextends = "finetune"\ndata = "photos"\nmodel = "cnn"\n')
    text = presets.explained(str(path))
    assert RunConfig.of(tomllib.loads(text)).training.optimizer.lr == 0.01
    assert "many words" not in text


def images(n: int, shape: tuple[int, ...], classes: int = 3, names: tuple[str, ...] = ()) -> Images:
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.integers(0, 200, (n, *shape)).astype(np.uint8))
    return Images(x, torch.arange(n) % classes, classes, "photos", class_names=names)


@pytest.mark.parametrize(
    ("n", "shape", "model", "batch_size"),
    [
        (90, (1, 28, 28), "cnn-small", 8),
        (90, (1, 64, 64), "wrn-16-2", 8),
        (400, (3, 16, 16), "wrn-16-2", 32),
        (1000, (3, 8, 8), "wrn-16-2", 64),
    ],
)
def test_a_configuration_for_images(n: int, shape: tuple[int, int, int], model: str, batch_size: int) -> None:
    own = images(n, shape, names=("cat", "dog", "fo\nx"))
    text = presets.for_images(own, "photos:test=0.2", None, "4/255")
    config = RunConfig.of(tomllib.loads(text))
    assert text.startswith(
        f"# {n} training images, {'gray' if shape[0] == 1 else 'colour'}, {shape[2]}x{shape[1]}"
    )
    assert "3 classes: cat, dog, fo x.\n" in text
    assert (config.data, config.model, config.threat.eps) == ("photos:test=0.2", model, 4 / 255)
    assert config.training.batch_size == batch_size
    (mean, *_), (std, *_) = own.stats()
    assert isinstance(config.normalize, MeanStd)
    assert len(config.normalize.mean) == shape[0]
    assert (config.normalize.mean[0], config.normalize.std[0]) == pytest.approx((mean, std), abs=1e-4)


def test_images_of_one_colour_are_not_divided_by_zero() -> None:
    gray = Images(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.arange(4), 4)
    assert RunConfig.of(tomllib.loads(presets.for_images(gray, "x.npz", "cnn", "0.1"))).normalize is False
