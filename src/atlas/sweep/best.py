"""The best trial as a preset file: `atlas train best.toml`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from atlas.config import Table, merge
from atlas.errors import UsageError
from atlas.training import RunConfig
from atlas.training.settings import REGISTRIES


def as_toml(config: RunConfig, name: str, preset: Table, comment: str) -> str:
    """The configuration as a preset that extends the base where it is one by name.

    name, preset: what the sweep was given, and the table that it stands for, without `--set`.
    """
    # Only files of its own folder can extend a file, and this one is written to the sweep's.
    if not name.endswith(".toml"):
        with suppress(UsageError):  # a preset may lack what `--set` has given
            lines = _changes(RunConfig.of(preset).table(), config.table())
            text = f"# {comment}\nextends = {_value(name)}\n\n" + "\n".join(lines) + "\n"
            if _gives(config, preset, text):
                return text
    return f"# {comment}\n" + "\n".join(_changes({}, config.table())) + "\n"


def _gives(config: RunConfig, preset: Table, text: str) -> bool:
    """Whether the text on top of the preset is the configuration; a table given anew may lack its keys."""
    changes = tomllib.loads(text)
    del changes["extends"]
    return RunConfig.of(merge(preset, changes, REGISTRIES)) == config


def _changes(base: Mapping[str, Any], table: Mapping[str, Any], where: str = "") -> list[str]:
    """Lines of TOML with dotted keys, for what the table has otherwise than the base."""
    lines = []
    for key, value in table.items():
        below = base.get(key)
        if isinstance(value, dict):
            lines += _changes(below if isinstance(below, dict) else {}, value, f"{where}{key}.")
        elif value is not None and (key not in base or below != value):
            lines.append(f"{where}{key} = {_value(value)}")
    return lines


def _value(value: Any) -> str:
    """As TOML, whose numbers, words and lists are JSON's."""
    return json.dumps(value, ensure_ascii=False)
