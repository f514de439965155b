"""The columns of the paper's tables, each an evaluation of its own, so that artefacts share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atlas.attacks.suites import TRANSFER, suite
from atlas.errors import choose
from atlas.reproduce.scales import Setting

SUITES = {
    "black box": "paper",
    "PGD-20": "paper",
    "PGD-1000": "paper",
    "Un-T": "paper",
    "Multi-T": "paper",
    "AutoAttack": "autoattack",
    "RayS": "rays",
}
"""The suite that has the attack of a column."""
STRONG = ("PGD-1000", "Un-T", "Multi-T", "AutoAttack")
"""The attacks that the paper's claim is tested under."""
SMOKE = {"steps": 3, "restarts": 2, "queries": 30, "targets": 2}
"""The most of each that an attack has at scale smoke."""


@dataclass(frozen=True)
class Column:
    """An attack, or a chain of them, on some of the test images."""

    label: str
    suite: str
    attacks: Mapping[str, Mapping[str, Any]]
    """Their tables, by the suite's labels."""
    n: int | None
    """Test images; None for all."""
    random: bool
    chain: bool

    @property
    def transfer(self) -> bool:
        """Whether it needs a surrogate."""
        return any(table["name"] == TRANSFER for table in self.attacks.values())

    @property
    def options(self) -> str:
        """For `atlas evaluate`."""
        only = "" if self.chain else "".join(f" --attacks '{label}'" for label in self.attacks)
        images = "" if self.n is None else f" --n {self.n}{' --random' if self.random else ''}"
        surrogate = " --surrogate SURROGATE" if self.transfer else ""
        return f"--suite {self.suite}{only}{images}{surrogate}"


def column(label: str, task: str, setting: Setting) -> Column | None:
    """The column of this label for a data set; None where its suite lacks it, as CIFAR-100's Multi-T."""
    chosen = suite(choose("column", label, SUITES), task)
    tables = {k: t for k, t in chosen.attacks.items() if chosen.name != "paper" or _is(k, label)}
    if not tables:
        return None
    if setting.cut:
        tables = {k: _cut(t) for k, t in tables.items()}
    n, random = setting.n(label), label in setting.random
    return Column(label, chosen.name, tables, n, random, chosen.standing)


def _is(attack: str, label: str) -> bool:
    """Whether the attack's label, which may have its budget behind it, is that of the column."""
    return attack == label or attack.startswith(f"{label} ")


def _cut(table: Mapping[str, Any]) -> dict[str, Any]:
    short: dict[str, Any] = {k: min(table[k], most) for k, most in SMOKE.items() if k in table}
    inner = {k: _cut(v) for k, v in table.items() if isinstance(v, Mapping)}
    return {**table, **short, **inner}
