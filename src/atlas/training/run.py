"""A run from its configuration: build what it names, and train."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atlas import config as conf
from atlas import data
from atlas.attacks import frozen
from atlas.attacks.engine import predict
from atlas.data.load import TEST, lacks_test_set
from atlas.data.store import at_home
from atlas.distributed.launch import checked_device, local_device
from atlas.distributed.process_group import ProcessGroup
from atlas.errors import UsageError, model_errors
from atlas.methods import Method
from atlas.models.normalize import Normalization
from atlas.models.weights import load_weights, normalization_of, read_weights
from atlas.runs import Record, Run, build_model
from atlas.terminal import Terminal
from atlas.threat import Threat
from atlas.training.fit import Result, fit, ignore
from atlas.training.settings import REGISTRIES, Training

SHOWN_IMAGES = 500


@dataclass(frozen=True)
class MeanStd:
    """A normalisation by given numbers, one per channel each."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class RunConfig:
    """All that decides the outcome of a run."""

    data: str
    """A data set's name or path."""
    model: str
    """A model's name, or ``module.path:factory``."""
    method: Method
    threat: Threat
    normalize: bool | MeanStd = False
    """Whether the model's first layer normalises by the training set's mean and std, or by these numbers."""
    training: Training = Training()
    weights: str | None = conf.omit_default_from_hash(None)
    """Weights to start from instead of random ones: a file (.safetensors, .pt, .pth) or a run's folder."""

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> RunConfig:
        """From a plain table, as in a preset file."""
        return conf.build(cls, table, REGISTRIES)

    def table(self) -> conf.ConfigDict:
        return conf.table_of(self, REGISTRIES)  # type: ignore[no-any-return]


def train(
    config: RunConfig,
    folder: Path,
    *,
    data_root: Path | None = None,
    device: str | None = None,
    allow_changes: bool = False,
    on_step: Callable[[Record], None] = ignore,
    on_epoch: Callable[[Sequence[Record]], None] = ignore,
    progress: bool = True,
    group: ProcessGroup = ProcessGroup(),
) -> Result:
    """Train what the configuration says in this folder, or resume the run that is there.

    Args:
        config: Such as `RunConfig.of(table)` or `load_config(folder)`.
        folder: Where everything is written.
        data_root: Where named data sets are; default: $ATLAS_DATA.
        device: Such as "cpu" or "cuda:1"; default: a GPU if there is one.
        allow_changes: Resume although settings differ.
        on_step, on_epoch, progress, group: As in `fit`.

    Returns:
        The result of `fit`, with the same errors.

    Example:
        >>> _, table = atlas.presets.load_preset("demo-atlas-1")
        >>> atlas.training.train(RunConfig.of(table), Path("runs/mine"))  # doctest: +SKIP
    """
    place = checked_device(local_device(device))
    images = data.load(config.data, train=True, root=data_root)
    quiet = not (progress and group.first) or Run(folder).begun
    console = Terminal(stderr=True, quiet=quiet)
    if images.empty_classes:
        console.say(f"{config.data}: {images.empty_classes}", "yellow")
    if lacks_test_set(config.data):  # said before time goes into a run that cannot be tested
        console.say(
            f"{config.data} has no test set, which `atlas evaluate` needs. To set a fifth of its images "
            f"apart, train with data = {json.dumps(f'{config.data}{TEST}0.2', ensure_ascii=False)}",
            "yellow",
        )
    path, tensors = Path(), dict[str, Tensor]()
    if config.weights is not None:
        path = at_home(config.weights)
        path = Run(path).best_path if path.is_dir() else path
        tensors = read_weights(path)
    about = {
        "model": config.model,
        "num_classes": images.num_classes,
        "shape": list(images.shape),
        "normalize": _normalization(config.normalize, images, path, tensors),
    }
    model = build_model(about, config.training.seed)
    if tensors:
        load_weights(model, tensors, path, config.model)
        if not quiet:
            console.say(_accuracy_at_start(model.to(place), images, path, config.training.batch_size))
    return fit(
        model,
        images,
        config.method,
        threat=config.threat,
        training=config.training,
        folder=folder,
        device=place,
        config=config.table(),
        about=about,
        allow_changes=allow_changes,
        on_step=on_step,
        on_epoch=on_epoch,
        progress=progress,
        group=group,
    )


def _normalization(
    wanted: bool | MeanStd, images: data.Images, path: Path, tensors: Mapping[str, Tensor]
) -> Normalization | None:
    """The one in the weights to start from, which were trained with it; else what the configuration says."""
    found = normalization_of(tensors)
    if isinstance(wanted, MeanStd):
        if found is not None:
            raise UsageError(
                f"{path} already holds a normalisation, mean {found[0]}, std {found[1]}: omit yours"
            )
        return wanted.mean, wanted.std
    return found or (images.stats() if wanted else None)


def _accuracy_at_start(model: nn.Module, images: data.Images, path: Path, batch_size: int) -> str:
    """How accurate the weights are before training, where a wrong normalisation shows."""
    x = images.pixels(slice(SHOWN_IMAGES), next(model.parameters()).device)
    y = images.y[:SHOWN_IMAGES]
    with model_errors("before training", "Free memory, then start again"), frozen(model), torch.no_grad():
        right = int((predict(model, x, batch_size).argmax(1).cpu() == y).sum())
    text = f"{path}: {right / len(y):.1%} correct on the first {len(y)} training images, before training"
    if right <= int(y.bincount().max()):
        text += (
            ", which is no better than a constant answer. If the weights were trained on normalised "
            "images, set normalize = { mean = [...], std = [...] }"
        )
    return text


def load_config(folder: Path) -> RunConfig:
    """The configuration of the run in this folder."""
    return RunConfig.of(Run.open(folder).config)
