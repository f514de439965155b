"""The training loop: `fit` any model on any images with any method, under the guided schedule.

An epoch: batches -> x_adv -> terms -> loss -> step; then validation -> schedule and watch -> state.
All randomness is a function of (seed, example, epoch), so a run that was killed goes on bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atlas.attacks import frozen
from atlas.config import table_of
from atlas.data import Images, as_images, split
from atlas.disk import locked
from atlas.errors import CheckpointError, DataError, Interrupted, NumericError, UsageError
from atlas.methods import Method
from atlas.signals import Requests, caught_signals
from atlas.threat import Threat
from atlas.training.display import Display
from atlas.training.folder import RunFolder
from atlas.training.log import Log, Record
from atlas.training.settings import REGISTRIES, Training
from atlas.training.trainer import Trainer


@dataclass(frozen=True)
class Result:
    """What `fit` gives back. The model has the weights of the best epoch."""

    model: nn.Module
    best_epoch: int
    best_robust: float
    epochs: list[Record]
    """The record of each epoch, as in `metrics.jsonl`."""
    ended: str
    """Why training ended."""
    seconds: float
    """Time spent in epochs, over all starts of the run."""
    folder: Path | None


def fit(
    model: nn.Module,
    train_set: Any,
    method: Method,
    *,
    threat: Threat,
    validation_set: Any = None,
    training: Training = Training(),
    folder: str | Path | None = None,
    device: torch.device | str | None = None,
    config: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    allow_changes: bool = False,
    each_epoch: Callable[[Sequence[Record]], None] = lambda records: None,
    progress: bool = True,
) -> Result:
    """Train `model` in place and return it with the weights of its best epoch.

    `train_set` and `validation_set`: Images, an (x, y) pair, a data set or a DataLoader. Without a
    validation set, `training.validation.size` of the training images are set apart. With a folder, all is
    written there, and a run that is found there goes on where it was; `config` (by default the method,
    threat and training) is what must then be the same, and `about` is written into the weights.
    `each_epoch` is called after every epoch, once it is saved, with the records of all epochs so far; what
    it raises ends the run, which can go on later.
    """
    images, held_out = _sets(train_set, validation_set, training)
    model.to(device or next(model.parameters(), torch.empty(0)).device)
    _try(model, images)
    place = RunFolder(Path(folder)) if folder is not None else None
    title = place.path.name if place else "training"
    with (
        locked(place.path) if place else nullcontext(),
        caught_signals() if place else nullcontext(Requests()) as requests,
        torch.random.fork_rng(),
        Display(title, training.schedule.epochs, shown=progress) as display,
        Log(place) as log,
    ):
        torch.manual_seed(training.seed)  # for dropout; all else has streams of its own
        parts = {"method": method, "threat": threat, "training": training}
        table = config or {name: table_of(part, REGISTRIES) for name, part in parts.items()}
        if place:
            place.check_config(table, allow_changes)
        trainer = Trainer(model, images, held_out, method, threat, training, log, display, requests)
        seen = {"data": images.fingerprint(), "validation": held_out.fingerprint()}
        keeper = _Keeper(trainer, place, {**(about or {}), **seen})
        keeper.restore()
        if place:
            place.write_config(table)
        return keeper.to_the_end(each_epoch)


def _sets(train_set: Any, validation_set: Any, training: Training) -> tuple[Images, Images]:
    images = as_images(train_set)
    if validation_set is None:
        return split(images, training.validation.size, training.seed)
    held_out = as_images(validation_set, images.num_classes)
    if held_out.shape != images.shape:
        raise DataError(f"validation images are {held_out.shape}; wanted {images.shape}, as in training")
    return images, held_out


def _try(model: nn.Module, images: Images) -> None:
    """Two images through the model, before anything is written: one's own model may have the wrong shape."""
    weights = [p for p in model.parameters() if p.requires_grad]
    if not weights:
        raise UsageError("the model has no weights to train: wanted at least one that requires a gradient")
    x = images.pixels(torch.zeros(2, dtype=torch.int64), weights[0].device)
    try:
        with frozen(model), torch.no_grad():
            logits = model(x)
    except Exception as error:  # a model of one's own can raise anything
        raise UsageError(f"the model fails on images of shape {images.shape}: {error}") from error
    wanted = f"logits [B, {images.num_classes}], a finite number for each class"
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or logits.shape[1] < images.num_classes:
        got = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise UsageError(f"the model makes {got} of 2 images; wanted {wanted}")
    if not logits.isfinite().all():
        raise NumericError(f"the model's logits are not finite before training; wanted {wanted}")


class _Keeper:
    """Runs the trainer epoch by epoch and keeps its state and weights in the folder."""

    def __init__(self, trainer: Trainer, folder: RunFolder | None, about: Mapping[str, Any]) -> None:
        self.trainer, self.folder, self.about = trainer, folder, about
        self.saved_at = time.monotonic()

    def to_the_end(self, each_epoch: Callable[[Sequence[Record]], None]) -> Result:
        trainer = self.trainer
        while trainer.at.ended is None:
            try:
                trainer.train_epoch(after_step=self.save_if_due)
                record = trainer.close_epoch(*trainer.validate())
            except Interrupted:
                trainer.note_time("interrupted")
                self.save()
                raise
            if record["best"]:
                self.export("best")
            self.save()
            each_epoch(trainer.log.epochs)
        self.export("last")
        trainer.learner.model.load_state_dict(trainer.learner.best)
        return Result(
            model=trainer.learner.model,
            best_epoch=trainer.at.guide.best_epoch,
            best_robust=trainer.at.guide.best,
            epochs=trainer.log.epochs,
            ended=trainer.at.ended,
            seconds=trainer.log.seconds,
            folder=self.folder.path if self.folder else None,
        )

    def export(self, which: str) -> None:
        """The evaluated weights as a file of their own."""
        if self.folder is not None:
            about = {**self.about, "epoch": self.trainer.at.epoch - 1}
            self.folder.save_weights(which, self.trainer.learner.evaluated.state_dict(), about)

    def save_if_due(self) -> None:
        if time.monotonic() - self.saved_at > 60 * self.trainer.training.checkpoint_minutes:
            self.save()

    def save(self) -> None:
        if self.folder is not None:
            about = {"data": self.about["data"], "validation": self.about["validation"]}
            about |= self.trainer.state()
            self.folder.save_state(self.trainer.learner.tensors(), about)
        self.saved_at = time.monotonic()

    def restore(self) -> None:
        """Go on from the newest good state in the folder; without one, start."""
        found = self.folder.load_state() if self.folder else None
        if found is None:
            self.trainer.log.open(0, 0)
            return
        tensors, about, complaints = found
        for complaint in complaints:
            self.trainer.display.warn(f"{complaint}; going on from the state before")
        for which, what in {"data": "training", "validation": "validation"}.items():
            if about.get(which) != self.about[which]:
                raise CheckpointError(
                    f"the {what} images are not those that this run was started with: give it the same data"
                )
        self.trainer.learner.load(tensors)
        self.trainer.go_on_from(about)
