"""What an artefact of the paper is: rows to train, columns to attack them with, and how both are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from atlas.report.tables import Table
from atlas.reproduce import paper

if TYPE_CHECKING:
    from atlas.reproduce.findings import Findings


@dataclass(frozen=True)
class Row:
    """A model to train: a preset of a data set, with changes."""

    task: str
    """mnist, cifar10 or cifar100: what the paper's numbers are of."""
    preset: str
    """The preset's name without what tells data set and network, such as "adv-1"."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings by dotted keys, as for `atlas train --set`."""
    key: str = ""
    """By which `--rows` knows it; the preset's by default."""
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
    about: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    """Of CLEAN, the attacks of `atlas.reproduce.columns`, WORST and paper.TIME, as they are shown."""
    figure: Callable[[Findings], Figure]
    tables: Mapping[str, Callable[[Findings], Table | None]] = field(default_factory=dict)
    """Beside the comparison with the paper: what is made of the findings, by the name of its files."""
    data: Mapping[str, Callable[[Findings], Table]] = field(default_factory=dict)
    """What the figure draws beyond the cells, too long for a page: by the name of its file."""

    def columns_of(self, row: Row) -> tuple[str, ...]:
        return self.columns if row.columns is None else row.columns
