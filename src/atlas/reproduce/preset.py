"""Presets: one small TOML file for each row of the paper, and CPU-sized ones.

Files whose names start with _ are the parts that others extend.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from atlas.config import Table, merge
from atlas.errors import UsageError, unknown
from atlas.training.settings import REGISTRIES

DEPTH = 5
"""How far a chain of `extends` may go."""


def names() -> list[str]:
    """All presets of the package."""
    return sorted(n for n in _files() if not n.startswith("_"))


def load_preset(name_or_file: str) -> tuple[str, Table]:
    """(name, table) of a preset or of one's own TOML file, without its `description`."""
    table, name = _chain(name_or_file, DEPTH), Path(name_or_file).stem
    table.pop("description", None)
    return name, table


def description(name: str) -> str:
    return str(_read(name).get("description", ""))


def _files() -> dict[str, Any]:
    folder = resources.files("atlas.reproduce") / "presets"
    return {f.name.removesuffix(".toml"): f for f in folder.iterdir() if f.name.endswith(".toml")}


def _read(name_or_file: str) -> Table:
    if name_or_file.endswith(".toml"):
        source: Any = Path(name_or_file)
        if not source.is_file():
            raise UsageError(f"there is no file {name_or_file}; give a preset's name or a .toml file")
    else:
        source = _files().get(name_or_file)
    if source is None:
        raise unknown("preset", name_or_file, names())
    try:
        return tomllib.loads(source.read_text("utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        # ValueError: not UTF-8, not TOML, or a number of thousands of digits; the other: brackets as deep.
        raise UsageError(f"{name_or_file} is not a TOML file that can be read: {error}") from error


def _chain(name_or_file: str, depth: int) -> Table:
    """The table with what it extends beneath it: a preset, or a file of one's own next to it."""
    table = _read(name_or_file)
    base = table.pop("extends", None)
    if base is None:
        return table
    if not isinstance(base, str) or (base.endswith(".toml") and Path(base).name != base):
        wanted = "wanted a preset's name or a .toml file in the same folder"
        raise UsageError(f"extends = {base!r} in {name_or_file}; {wanted}")
    if depth == 0:
        raise UsageError(f"extends = {base!r} in {name_or_file} goes in a circle")
    if base.endswith(".toml"):
        base = str(Path(name_or_file).parent / base)
    return merge(_chain(base, depth - 1), table, REGISTRIES)
