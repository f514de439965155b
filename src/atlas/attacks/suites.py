"""Suites: attacks that are run together, as data (`suites.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from atlas.config import build
from atlas.errors import UsageError, unknown

TRANSFER = "transfer"
"""The attack that needs models beside its table: `atlas.attacks.Transfer`."""


@dataclass(frozen=True)
class Suite:
    """Attacks by their labels, in the order in which they run."""

    name: str
    description: str
    attacks: Mapping[str, Mapping[str, Any]]  # the table of each, as in a configuration
    cascade: bool = False  # whether each attack runs only on the images that those before it have left


@dataclass(frozen=True)
class _Table:
    """A suite as a file has it."""

    description: str = ""
    norm: Literal["", "linf", "l2"] = ""
    cascade: bool = False
    on: Literal["", "standing"] = ""  # the older spelling of cascade = true
    attacks: tuple[Mapping[str, Any], ...] = ()
    includes: tuple[str, ...] = ()


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((resources.files("atlas.attacks") / "suites.toml").read_text("utf-8"))


def names() -> list[str]:
    """All suites; NAME-DATA is the form of NAME for one data set."""
    return list(_tables())


def suite(name: str, data: str = "", norm: str = "linf") -> Suite:
    """The suite of this name, in its form for the data set `data` where there is one; or that of a file.

    A form with steps in pixels of one norm says so, and is taken for that `norm` only. A custom file (.toml)
    is such a table as those of `suites.toml`, at its top level.
    """
    if name.endswith(".toml"):
        given, name = _read(Path(name)), Path(name).stem
    elif name in _tables():
        given = _tables().get(f"{name}-{data}", _tables()[name])
        if given.get("norm", norm) != norm:
            given = _tables()[name]
    else:
        raise unknown("suite", name, _tables())
    table = build(_Table, given, {}, f"suite {name}")
    entries = list[tuple[str, Mapping[str, Any]]]()
    for other in table.includes:
        entries += suite(other, data, norm).attacks.items()
    for attack in table.attacks:
        if not all(isinstance(attack.get(key), str) for key in ("label", "name")):
            raise UsageError(
                f"suite {name}: attacks must have a label and a name, such as "
                f'attacks = [{{ label = "PGD-50", name = "pgd", steps = 50 }}], got {dict(attack)}'
            )
        entries.append((attack["label"], {key: value for key, value in attack.items() if key != "label"}))
    attacks = dict(entries)
    if len(attacks) < len(entries):
        raise UsageError(f"suite {name}: two attacks share a label, of {[label for label, _ in entries]}")
    return Suite(name, table.description, attacks, table.cascade or table.on == "standing")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a suite that can be read: {error}") from error
