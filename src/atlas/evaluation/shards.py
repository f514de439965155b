"""An evaluation shared among processes: each takes every of-th image, and `merge` joins what they found."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atlas.errors import CheckpointError, UsageError
from atlas.evaluation.evaluation_folder import EvaluationFolder, slug
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
        clean = _merged(parts, "clean")
        whole.save_columns("clean", clean)
        for label in labels:
            surrogates = f"surrogates-{slug(label)}"
            if parts[0].load_columns(surrogates) is not None:
                whole.save_columns(surrogates, _merged(parts, surrogates))
            columns = _merged(parts, f"attack-{slug(label)}")
            whole.note_time(label, max(part.times().get(label, 0.0) for part in parts))
            _merge_images(parts, whole, label, clean["ids"])
            whole.save_columns(f"attack-{slug(label)}", columns)
            whole.drop_state(label)
        for left in path.glob("shard-*-of-*"):  # also of an earlier start with another number of processes
            if EvaluationFolder(left).is_of(whole.about()):
                shutil.rmtree(left)


def _merged(parts: Sequence[EvaluationFolder], name: str) -> dict[str, Tensor]:
    found = []
    for part in parts:
        columns = part.load_columns(name)
        if columns is None:
            raise CheckpointError(f"{part.path} has no {name}.npz: its process has not come to the end")
        found.append(columns)
    return {key: _interleaved([columns[key] for columns in found]) for key in found[0]}


def _interleaved(parts: Sequence[Tensor]) -> Tensor:
    whole = parts[0].new_empty(sum(map(len, parts)), *parts[0].shape[1:])
    for index, part in enumerate(parts):
        whole[index :: len(parts)] = part
    return whole


def _merge_images(
    parts: Sequence[EvaluationFolder], whole: EvaluationFolder, label: str, ids: Tensor
) -> None:
    """The images that fool, in the order of all `ids`."""
    found = [images for part in parts if (images := part.load_images(label))]
    if len(found) == len(parts):
        own, x_adv = (torch.cat(tensors) for tensors in zip(*found, strict=True))
        place = {number: k for k, number in enumerate(ids.tolist())}
        order = torch.tensor([place[number] for number in own.tolist()], device="cpu").argsort()
        whole.save_images(label, own[order], x_adv[order])
