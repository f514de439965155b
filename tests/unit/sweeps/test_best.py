"""The best trial as a file that gives the same configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlas import presets
from atlas.config import override
from atlas.sweeps.files import as_toml
from atlas.training import RunConfig


def read(text: str, folder: Path) -> RunConfig:
    (folder / "best.toml").write_text(text)
    return RunConfig.of(presets.load_preset(str(folder / "best.toml"))[1])


@pytest.mark.parametrize("name", sorted({*presets.names()} - {"standard", "finetune"}))
def test_every_preset_comes_back(name: str, tmp_path: Path) -> None:
    table = presets.load_preset(name)[1]
    config = RunConfig.of(override(table, "training.optimizer.lr", 0.123))
    extended = as_toml(config, name, table, "a comment")
    assert f'extends = "{name}"' in extended
    assert "training.optimizer.lr = 0.123" in extended
    assert read(extended, tmp_path) == config
    whole = as_toml(config, "own/file.toml", table, "a comment")
    assert "extends" not in whole
    assert read(whole, tmp_path) == config


def test_a_table_given_anew_is_written_whole(tmp_path: Path) -> None:
    """The base's attack has keys that the new one must not inherit."""
    table = presets.load_preset("demo-atlas-1")[1]
    config = RunConfig.of(override(table, "training.validation.attack", {"name": "apgd", "steps": 7}))
    text = as_toml(config, "demo-atlas-1", table, "a comment")
    assert read(text, tmp_path) == config


def test_a_preset_without_data_is_written_whole(tmp_path: Path) -> None:
    table = presets.load_preset("finetune")[1]
    config = RunConfig.of({**table, "data": "mnist-mini", "model": "cnn-small", "weights": "old.pth"})
    assert read(as_toml(config, "finetune", table, "a comment"), tmp_path) == config
