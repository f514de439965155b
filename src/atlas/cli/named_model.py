"""What `atlas evaluate` evaluates: a run's folder, a model's file, or a factory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from atlas import presets
from atlas.attacks import Model
from atlas.data import Images
from atlas.data.load import TEST
from atlas.distributed.launch import checked_device, local_device, rank
from atlas.errors import UsageError
from atlas.models import source
from atlas.models.normalize import Normalization
from atlas.runs import Run
from atlas.threat import Threat
from atlas.training import RunConfig, load_config, load_model, train

EVALUATIONS = "evaluations"
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class NamedModel:
    """A model that is named, with what is known of its data and threat."""

    what: str
    data: str
    threat: Threat | None
    folder: Path
    """Where its evaluations go."""
    model: str | None
    device: str | None
    normalize: str | Normalization | None = None
    output: str | None = None

    def load(self, images: Images) -> nn.Module:
        """The model itself, for images such as these."""
        device = checked_device(local_device(self.device))
        if Path(self.what).is_dir():
            return load_model(self.what, device=device)
        return source.load(
            self.what,
            name=self.model,
            num_classes=images.num_classes,
            shape=images.shape,
            normalize=self.normalize,
            output=self.output,
            device=device,
        )


def named(
    what: str,
    model: str | None,
    data: str | None,
    device: str | None,
    normalize: str | Normalization | None = None,
    output: str | None = None,
) -> NamedModel:
    """Find out what the words of the command line mean; nothing is loaded yet."""
    path = Path(what)
    if path.is_dir():
        if any(option is not None for option in (model, normalize, output)):
            raise UsageError(
                f"{what} is a run's folder, which has its model: omit --model, --normalize, --mean, --std "
                "and --output"
            )
        config = load_config(path)
        if data is not None and data != config.data and _place(data) == _place(config.data):
            raise UsageError(
                f"{what} was trained on {config.data}, whose training images may be test images of {data}: "
                "omit --data, or train on it"
            )
        return NamedModel(what, data or config.data, config.threat, path / EVALUATIONS, None, device)
    if ":" not in what and not path.suffix:
        raise UsageError(f"there is no folder {what}; expected a run's folder, {source.KINDS}")
    if data is None:
        raise UsageError("--data is missing: a data set's name or path; a run's folder knows its own")
    name = what.replace(":", ".") if ":" in what else path.stem
    return NamedModel(what, data, None, Path(EVALUATIONS) / name, model, device, normalize, output)


def _place(data: str) -> str:
    """Where data that is divided into training and test images is, or would be."""
    return data.rpartition(TEST)[0] or data


def surrogates(names: Sequence[str], folder: Path, device: str | None, root: Path | None) -> list[Model]:
    """The models of runs; a preset is trained below `folder` first, unless it is there already.

    Of several processes the first trains. If that fails, who started them ends them all.
    """
    found: list[Model] = []
    for name in names:
        place = Path(name)
        if not place.is_dir():
            known, table = presets.load_preset(name)
            place = folder / known
            while not Run(place).last_path.exists():  # which is written when a run has come to its end
                if rank() == 0:
                    train(RunConfig.of(table), place, data_root=root, device=device)
                else:
                    time.sleep(POLL_SECONDS)
        found.append(load_model(place, device=checked_device(local_device(device))))
    return found
