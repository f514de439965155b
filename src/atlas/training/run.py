"""A run from its configuration: build what it names, train, and load what it left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atlas import config as conf
from atlas import data, models
from atlas.checkpoint import load_tensors
from atlas.errors import CheckpointError, UsageError
from atlas.methods import Method
from atlas.threat import Threat
from atlas.training.contact import local_device
from atlas.training.fit import fit
from atlas.training.folder import RunFolder
from atlas.training.keeper import Result
from atlas.training.log import Record
from atlas.training.ranks import Ranks
from atlas.training.settings import REGISTRIES, Training


@dataclass(frozen=True)
class RunConfig:
    """All that decides the outcome of a run."""

    data: str
    """A named data set, or the path of one's own."""
    model: str
    """A model's name, or ``module.path:factory``."""
    method: Method
    threat: Threat
    normalize: bool = False
    """Whether the model's first layer centres and scales by the training set's mean and deviation."""
    training: Training = Training()

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> RunConfig:
        """From a plain table, as in a preset file."""
        return conf.build(cls, table, REGISTRIES)

    def table(self) -> conf.Table:
        return conf.table_of(self, REGISTRIES)  # type: ignore[no-any-return]


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def checked_device(name: str | None) -> torch.device:
    """The device of this name, or the default; one that is not there is a usage error."""
    try:
        device = torch.device(name) if name else default_device()
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {name!r} cannot be used here: {error}; try cpu") from error
    return device


def train(
    config: RunConfig,
    folder: Path,
    *,
    data_root: Path | None = None,
    device: str | None = None,
    allow_changes: bool = False,
    each_epoch: Callable[[Sequence[Record]], None] = lambda records: None,
    progress: bool = True,
    ranks: Ranks = Ranks(),
) -> Result:
    """Train what the configuration says in this folder, from where an earlier run there was left.

    `each_epoch` and `ranks`: as in `fit`.
    """
    place = checked_device(local_device(device))
    images = data.load(config.data, train=True, root=data_root)
    about = {
        "config": conf.fingerprint(config.table()),
        "model": config.model,
        "num_classes": images.num_classes,
        "shape": list(images.shape),
        "normalize": images.stats() if config.normalize else None,
    }
    model = _build(about, config.training.seed)
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
        each_epoch=each_epoch,
        progress=progress,
        ranks=ranks,
    )


def _build(about: Mapping[str, Any], seed: int = 0, device: str = "cpu") -> nn.Module:
    return models.build(
        about["model"],
        num_classes=about["num_classes"],
        shape=tuple(about["shape"]),
        normalize=about["normalize"],
        seed=seed,
        device=device,
    )


def _built_for(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> nn.Module:
    """The model that the file is of. What takes more memory than the file's own tensors is not made."""
    try:
        if ":" not in about["model"]:
            wanted = {k: v.shape for k, v in _build(about, device="meta").state_dict().items()}
            if wanted != {k: v.shape for k, v in tensors.items()}:
                raise CheckpointError(
                    f"{path} does not fit the model {about['model']!r} that it says it is of"
                )
        return _build(about)
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not say what model it is of: {error}") from error


def load_config(folder: Path) -> RunConfig:
    """The configuration of the run in this folder."""
    return RunConfig.of(RunFolder(folder).read_config())


def load_model(
    weights: str | Path, model: nn.Module | None = None, device: torch.device | str | None = None
) -> nn.Module:
    """The model of a run's folder (its best epoch) or of a weights file, in eval mode.

    A model of one's own is given as `model`, to be filled. From a run's folder its factory is called; a
    weights file alone is never a reason to import and call what it names.
    """
    weights = Path(weights)
    path = RunFolder(weights).best if weights.is_dir() else weights
    tensors, about = load_tensors(path)
    if model is None:
        if "model" not in about or (":" in str(about["model"]) and not weights.is_dir()):
            raise CheckpointError(f"{path} is of a model of your own: give it as load_model(..., model=...)")
        model = _built_for(path, tensors, about)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not fit the model: {error}") from error
    return model.to(device or default_device()).eval()
