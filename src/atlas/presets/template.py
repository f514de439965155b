"""A configuration as a TOML file in which every setting is explained."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, fields
from importlib import resources
from typing import Any

from atlas.config import ConfigDict, value_at
from atlas.terminal import one_line
from atlas.training import Optimizer, RunConfig, Schedule, Training, Validation

WIDTH = 80
SECTIONS: dict[str, type | None] = {
    "": RunConfig,
    "threat": None,
    "method": None,
    "method.attack": None,
    "training": Training,
    "training.optimizer": Optimizer,
    "training.schedule": Schedule,
    "training.validation": Validation,
    "training.validation.attack": None,
}
"""The tables of a configuration in the order in which they are written, with the class that they build; None
where that depends on their name."""
_TEXTS = tomllib.loads((resources.files("atlas.presets") / "_comments.toml").read_text("utf-8"))
COMMENTS, PARAMETERS = _TEXTS["settings"], _TEXTS["parameters"]
"""What settings and tables are, by dotted keys; and parameters of methods and attacks, by their names."""


def commented(table: ConfigDict, head: Sequence[str]) -> str:
    """The table as TOML with a comment on each setting, and below them those that are left at their defaults.

    Args:
        head: lines of text to put on top, as comments.
    """
    lines = [line for text in head for line in _comment(text)]
    for section, kind in SECTIONS.items():
        values = value_at(table, section)
        if not isinstance(values, dict):
            if kind is None:
                continue
            values = {}
        lines += ["", *_comment(COMMENTS.get(section, "")), f"[{section}]"] if section else [""]
        path = f"{section}." if section else ""
        for key, value in values.items():
            if path + key not in SECTIONS:
                comment = COMMENTS.get(path + key) or (PARAMETERS.get(key, "") if kind is None else "")
                lines += _line(f"{_key(key)} = {_value(value)}", comment)
        for field in fields(kind) if kind else ():
            if path + field.name not in SECTIONS and field.name not in values:
                known = field.default not in (None, MISSING)
                setting = f"{field.name} = {_value(field.default)}" if known else f"{field.name} is not set"
                lines += _line(f"# {setting}", COMMENTS.get(path + field.name, ""))
    return "\n".join(lines) + "\n"


def _line(setting: str, comment: str) -> list[str]:
    """With the comment behind the setting if it fits, else above."""
    if not comment:
        return [setting]
    line = f"{setting:<27}  # {comment}"
    return [line] if len(line) <= WIDTH else [*_comment(comment), setting]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(one_line(text), WIDTH - 2)]


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key)


def _value(value: Any) -> str:
    """As TOML on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which JSON leaves as it is
    return str(value)
