"""What an artefact of the paper is: rows to train, columns to attack them with, and how both are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

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
    paper: str = ""
    """The row of the paper's tables; the preset's by default, where nothing is changed."""
    smoke: bool = True
    """Whether it is part of the artefact at scale smoke."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.key or self.preset)
        object.__setattr__(self, "label", self.label or paper.label(self.preset))
        object.__setattr__(self, "paper", self.paper or ("" if self.changes else self.preset))


@dataclass(frozen=True)
class Artefact:
    """A table or a figure of the paper."""

    name: str
    of: str
    """Where it is in the paper."""
    rows: tuple[ModelRow, ...]
    columns: Mapping[str, tuple[str, ...]]
    """By data set: clean, attacks, the worst case and the time, in the order in which they are shown."""
    figure: Callable[[Results], Figure]
    tables: Mapping[str, Callable[[Results], Table | None]] = field(default_factory=dict)
    """Tables beside the comparison with the paper, by the name of their files."""
    data: Mapping[str, Callable[[Results], Table]] = field(default_factory=dict)
    """What the figure draws beyond the cells, too long for a page, by the name of its file."""

    @property
    def all_columns(self) -> list[str]:
        return list(dict.fromkeys(column for columns in self.columns.values() for column in columns))

    @property
    def of_mnist(self) -> bool:
        return {row.task for row in self.rows} == {"mnist"}
