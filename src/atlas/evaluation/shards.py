"""An evaluation shared among processes: each takes every of-th image, and `merge` joins what they found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atlas.disk import locked
from atlas.errors import CheckpointError, UsageError
from atlas.evaluation.folder import EvaluationFolder, slug


@dataclass(frozen=True)
class Shard:
    """Part `index` of `of`."""

    index: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise UsageError(f"shard {self.index} of {self.of}; wanted 0 to {self.of - 1} of {self.of}")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "0/2"."""
        index, slash, of = text.partition("/")
        if not (slash and index.isdigit() and of.isdigit() and int(of)):
            raise UsageError(f"shard is {text!r}; wanted INDEX/OF, such as 0/2")
        return cls(int(index), int(of))

    @property
    def part(self) -> slice:
        """Its images."""
        return slice(self.index, None, self.of)

    def folder(self, path: Path) -> Path:
        return path / f"shard-{self.index}-of-{self.of}"


def merge(path: Path, of: int, labels: Sequence[str]) -> None:
    """Put what `of` shards found of each attack into the folder of the whole, as if one process had."""
    parts = [EvaluationFolder(Shard(index, of).folder(path)) for index in range(of)]
    whole = EvaluationFolder(path)
    with locked(path):
        for label in labels:
            name = f"attack-{slug(label)}"
            columns = [part.load_columns(name) for part in parts]
            if any(column is None for column in columns):
                raise CheckpointError(f"{path}: a shard has no result of {label}; run it again to the end")
            found = [column for column in columns if column is not None]
            whole.note_time(label, max(part.times().get(label, 0.0) for part in parts))
            whole.save_columns(name, {key: _interleaved([c[key] for c in found]) for key in found[0]})


def _interleaved(parts: Sequence[Tensor]) -> Tensor:
    whole = torch.empty(sum(map(len, parts)), dtype=parts[0].dtype)
    for index, part in enumerate(parts):
        whole[index :: len(parts)] = part
    return whole
