"""An evaluation shared among processes: each takes every of-th image, and `merge` joins what they found."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atlas.errors import CheckpointError, UsageError
from atlas.evaluation.evaluation_folder import CLEAN, EvaluationFolder, file_of
from atlas.files import locked


@dataclass(frozen=True)
class Shard:
    """Part `index` of `of`."""

    index: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise UsageError(f"shard must be 0 to {self.of - 1} of {self.of}, got {self.index}")

    @property
    def part(self) -> slice:
        """Its images."""
        return slice(self.index, None, self.of)

    def folder(self, path: Path) -> Path:
        return path / f"shard-{self.index}-of-{self.of}"


def merge(path: Path, of: int, labels: Sequence[str]) -> None:
    """Put what `of` shards found into the folder of the whole, as if one process had; their folders go."""
    parts = [EvaluationFolder(Shard(index, of).folder(path)) for index in range(of)]
    whole = EvaluationFolder(path, parts[0].known_code())
    with locked(path):
        for part in parts:
            whole.claim(part.about())
        clean = _merged(parts, CLEAN)
        whole.save(CLEAN, clean)
        for label in labels:
            surrogates, images, attack = (file_of(k, label) for k in ("surrogates", "images", "attack"))
            if (parts[0].path / surrogates).exists():
                whole.save(surrogates, _merged(parts, surrogates))
            columns = _merged(parts, attack)
            whole.note_time(label, max(part.times().get(label, 0.0) for part in parts))
            found = [kept for part in parts if (kept := part.load(images))]
            if len(found) == of:  # in the order of all images
                ids, x_adv = (torch.cat([kept[key] for kept in found]) for key in ("ids", "x_adv"))
                place = {number: k for k, number in enumerate(clean["ids"].tolist())}
                order = torch.tensor([place[number] for number in ids.tolist()], device="cpu").argsort()
                whole.save(images, {"ids": ids[order], "x_adv": x_adv[order]})
            whole.save(attack, columns)
            whole.drop_state(label)
        for left in path.glob("shard-*-of-*"):  # also of an earlier start with another number of processes
            with suppress(CheckpointError):  # not an evaluation's
                if EvaluationFolder(left).about() == whole.about():
                    shutil.rmtree(left)


def _merged(parts: Sequence[EvaluationFolder], name: str) -> dict[str, Tensor]:
    """The columns of all images, of which each part has every len(parts)-th."""
    found = []
    for part in parts:
        if (columns := part.load(name)) is None:
            raise CheckpointError(f"{part.path} has no {name}: its process has not come to the end")
        found.append(columns)
    whole = {}
    for key, first in found[0].items():
        whole[key] = first.new_empty(sum(len(columns[key]) for columns in found), *first.shape[1:])
        for index, columns in enumerate(found):
            whole[key][index :: len(parts)] = columns[key]
    return whole
