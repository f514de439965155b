"""Suites: attacks that are run together, as data (`suites.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from atlas.errors import UsageError, unknown

KEYS = ("description", "cascade", "on", "attacks", "includes")
ON = "standing"
"""What an older spelling of `cascade = true` says: `on = "standing"`."""
TRANSFER = "transfer"
"""The attack that needs models beside its table: `atlas.attacks.Transfer`."""


@dataclass(frozen=True)
class Suite:
    """Attacks by their labels, in the order in which they run."""

    name: str
    description: str
    attacks: Mapping[str, Mapping[str, Any]]
    """The table of each attack, as in a configuration."""
    cascade: bool = False
    """Whether each attack runs only on the images that those before it have left."""


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((resources.files("atlas.attacks") / "suites.toml").read_text("utf-8"))


def names() -> list[str]:
    """All suites; NAME-DATA is the form of NAME for one data set."""
    return list(_tables())


def suite(name: str, data: str = "", within: tuple[str, ...] = (), norm: str = "linf") -> Suite:
    """The suite of this name, in its form for the data set `data` where there is one; or that of a file.

    A form with steps in pixels of one norm says so, and is taken for that `norm` only. A custom file (.toml)
    is such a table as those of `suites.toml`, at its top level. `within` are the files that include it.
    """
    if name.endswith(".toml"):
        if any(Path(name).resolve() == Path(outer).resolve() for outer in within):
            raise UsageError(f"suites include each other: {' -> '.join([*within, name])}; remove one include")
        table, within, name = _own(Path(name)), (*within, name), Path(name).stem
    else:
        tables = _tables()
        if name not in tables:
            raise unknown("suite", name, tables)
        table = tables.get(f"{name}-{data}", tables[name])
        if table.get("norm", norm) != norm:
            table = tables[name]
    entries = _all(table, data, within, norm)
    attacks = {e["label"]: {k: v for k, v in e.items() if k != "label"} for e in entries}
    if len(attacks) < len(entries):
        raise UsageError(f"suite {name}: two attacks share a label, of {[e['label'] for e in entries]}")
    return Suite(name, table["description"], attacks, _is_cascade(table))


def _own(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a suite that can be read: {error}") from error
    for key in table:
        if key not in KEYS:
            raise unknown(f"key in {path}:", key, KEYS)
    attacks, includes = table.get("attacks", []), table.get("includes", [])
    if not isinstance(attacks, list) or not all(map(_is_entry, attacks)):
        raise UsageError(
            f"{path}: attacks must be a list of tables with a label and a name, such as "
            'attacks = [{ label = "PGD-50", name = "pgd", steps = 50 }]'
        )
    if not isinstance(includes, list) or not all(isinstance(name, str) for name in includes):
        raise UsageError(f"{path}: includes must be a list of suites, got {includes!r}")
    if not isinstance(table.get("cascade", False), bool) or table.get("on", ON) != ON:
        raise UsageError(
            f"{path}: cascade must be true or false, got {table.get('cascade', table.get('on'))!r}"
        )
    return {"description": "", **table}


def _is_cascade(table: Mapping[str, Any]) -> bool:
    return bool(table.get("cascade", table.get("on") == ON))


def _is_entry(entry: object) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("label", "name"))


def _all(table: Mapping[str, Any], data: str, within: tuple[str, ...], norm: str) -> list[dict[str, Any]]:
    included = [suite(name, data, within, norm).attacks for name in table.get("includes", ())]
    entries = [{"label": label, **attack} for attacks in included for label, attack in attacks.items()]
    return [*entries, *table.get("attacks", ())]
