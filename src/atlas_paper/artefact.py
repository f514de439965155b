"""What an artefact of the paper is: rows to train, columns to attack them with, and how both are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from atlas.attacks.suites import TRANSFER, suite
from atlas.errors import choose
from atlas.reports.tables import Table
from atlas_paper import paper

if TYPE_CHECKING:
    from atlas_paper.results import Results


@dataclass(frozen=True)
class ModelRow:
    """A model to train: a preset of a data set, with changes."""

    task: str
    """mnist, cifar10 or cifar100: the data set of the paper's numbers."""
    preset: str
    """The preset's name without data set and network, such as "adv-1"."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings by dotted keys, as for `atlas train --set`."""
    key: str = ""
    """Its name for `--rows`; the preset's by default."""
    label: str = ""
    """In tables and figures; the paper's name by default."""
    columns: tuple[str, ...] | None = None
    """Where they are not the artefact's."""
    paper: str = ""
    """The row of the paper's tables; the preset's by default, where nothing is changed."""
    smoke: bool = True
    """Whether it is part of the artefact at scale smoke."""

    def __post_init__(self) -> None:
        fill = {"key": self.preset, "label": paper.label(self.preset)}
        fill["paper"] = "" if self.changes else self.preset
        for name, value in fill.items():
            object.__setattr__(self, name, getattr(self, name) or value)


@dataclass(frozen=True)
class Artefact:
    """A table or a figure of the paper."""

    name: str
    of: str
    """Where it is in the paper."""
    rows: tuple[ModelRow, ...]
    columns: tuple[str, ...]
    """CLEAN, labels of SUITES, WORST and paper.TIME, in the order in which they are shown."""
    figure: Callable[[Results], Figure]
    tables: Mapping[str, Callable[[Results], Table | None]] = field(default_factory=dict)
    """Tables beside the comparison with the paper, by the name of their files."""
    data: Mapping[str, Callable[[Results], Table]] = field(default_factory=dict)
    """What the figure draws beyond the cells, too long for a page, by the name of its file."""

    def columns_of(self, row: ModelRow) -> tuple[str, ...]:
        return self.columns if row.columns is None else row.columns


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
"""The upper limits of an attack at scale smoke."""


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


def column(label: str, task: str, n: int | None, scale: str) -> Column | None:
    """The column of this label on a data set; None where its suite lacks it, as CIFAR-100's Multi-T."""
    chosen = suite(choose("column", label, SUITES), task)
    tables = dict(chosen.attacks)
    if chosen.name == "paper":  # where the attack's label may be followed by its budget
        tables = {k: t for k, t in tables.items() if f"{k} ".startswith(f"{label} ")}
    if scale == "smoke":
        tables = {k: _cut(t) for k, t in tables.items()}
    random = n is not None and scale == "paper"
    return Column(label, chosen.name, tables, n, random, chosen.cascade) if tables else None


def _cut(table: Mapping[str, Any]) -> dict[str, Any]:
    short: dict[str, Any] = {k: min(table[k], most) for k, most in SMOKE.items() if k in table}
    inner = {k: _cut(v) for k, v in table.items() if isinstance(v, Mapping)}
    return {**table, **short, **inner}
