"""`fit` trains any model on any images with any method, under the guided schedule.

An epoch: batches -> x_adv -> terms -> loss -> step; then validation -> schedule, collapse detector -> state.
All randomness is a function of (seed, example, epoch), so a run that was killed resumes with bit-identical
results on a CPU; on a GPU that takes `training.deterministic`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atlas.attacks.inputs import answer
from atlas.attacks.model_variants import check_autograd
from atlas.config import check_arguments, fingerprint, table_of
from atlas.data import Images, as_images, split
from atlas.distributed.launch import checked_device
from atlas.distributed.process_group import ProcessGroup
from atlas.errors import DataError, NumericError, UsageError, model_errors
from atlas.files import locked
from atlas.methods import Method
from atlas.runs import Record, Run
from atlas.signals import Requests, caught_signals
from atlas.threat import Threat, check_threat, eps_text
from atlas.training.display import Display
from atlas.training.log import Log
from atlas.training.precision import deterministic
from atlas.training.settings import REGISTRIES, Training
from atlas.training.state import describe_model
from atlas.training.trainer import StopTraining, Trainer


@dataclass(frozen=True, repr=False)
class Result:
    """What `fit` returns. The model has the weights of the best epoch.

    Example:
        >>> result = atlas.fit(model, data, method, threat=atlas.Linf(0.1), epochs=2)  # doctest: +SKIP
        >>> result  # doctest: +SKIP
        all 2 epochs done: best epoch 2 of 2, validation robust accuracy 71.25%
    """

    model: nn.Module
    best_epoch: int
    """From 0, as in `epochs`; what is shown counts from 1. -1 if no epoch was finished."""
    best_robust: float
    epochs: list[Record]
    """The record of each epoch, as in `metrics.jsonl`."""
    ended: str
    """Why training ended."""
    seconds: float
    """Time spent in epochs, over all starts of the run."""
    folder: Path | None

    def __repr__(self) -> str:
        text = f"{self.ended}: best epoch {self.best_epoch + 1} of {len(self.epochs)}, validation robust "
        text += f"accuracy {self.best_robust:.2%}"
        if "val_majority" in self.best:  # an accuracy of imbalanced classes says little by itself
            share, balanced = self.best["val_majority"], self.best["val_balanced"]
            text += f" (majority {share:.1%}, balanced {balanced:.1%})"
        return text

    @property
    def best(self) -> Record:
        """The record of the best epoch; empty on a rank that was started after it."""
        return next((record for record in self.epochs if record["epoch"] == self.best_epoch), {})


def ignore(record: Any) -> None:
    """The callback that does nothing."""


@check_arguments("model", "method", "threat")
def fit(
    model: nn.Module,
    train_set: Any,
    method: Method,
    *,
    threat: Threat,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    validation_set: Any = None,
    training: Training = Training(),
    folder: str | Path | None = None,
    device: torch.device | str | None = None,
    config: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    allow_changes: bool = False,
    on_step: Callable[[Record], None] = ignore,
    on_epoch: Callable[[Sequence[Record]], None] = ignore,
    progress: bool = True,
    group: ProcessGroup = ProcessGroup(),
) -> Result:
    """Train `model` in place and return it with the weights of its best epoch, in eval mode.

    Args:
        model: Any module from images to logits.
        train_set: Images, an (x, y) pair, a data set or a DataLoader.
        method: What to minimise, from `atlas.methods`.
        threat: The perturbations to withstand.
        epochs: Replaces that of `training`; eps then grows during at most half of them. By default training
            may take up to 100 epochs, and how long that may be is printed after the first.
        lr: Replaces the learning rate of `training`.
        batch_size: Replaces that of `training`.
        validation_set: As `train_set`; by default `training.validation.size` of the training images.
        training: All other settings.
        folder: Where to write everything. A run that is found there is resumed: data, `config` and the
            model with its initial weights must be the same, unless `allow_changes`.
        device: Where to train; default: where the model is.
        config: What the run is known by; default: the method, threat and training.
        about: Written into the weights.
        allow_changes: Resume although settings or the model differ.
        on_step: Called after each step with its record: epoch, step, lr, loss, terms, seconds.
        on_epoch: Called after each epoch, once it is saved, with the records of all epochs so far. If a
            callback raises `StopTraining`, the state is saved and training ends with its message in
            `Result.ended`; the run can be resumed.
        progress: Whether to print progress.
        group: The processes that train this model together (``with connected() as group:``, under
            torchrun). Only the first of them writes, prints and calls the callbacks.

    Returns:
        The model, the record of each epoch, and why training ended.

    Raises:
        UsageError, DataError: if the arguments do not fit together.
        NumericError: if a loss or gradient is not finite.
        CheckpointError: if the folder holds another run, or a damaged one.
        Interrupted: after a signal; with a folder, everything is saved first.

    Example:
        >>> import atlas, torch
        >>> x, y = torch.rand(40, 1, 4, 4), torch.arange(40) % 2
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
        >>> method = atlas.methods.Atlas(alpha=2e-4, beta=5.0)
        >>> result = atlas.fit(model, (x, y), method, threat=atlas.Linf(0.1), epochs=2, progress=False)
        >>> len(result.epochs)
        2
    """
    check_autograd()
    if not isinstance(model, nn.Module):
        raise UsageError(f"model must be an nn.Module with weights to train, got {type(model).__name__}")
    if not isinstance(method, Method):
        raise UsageError(f"method must be one of atlas.methods, such as Atlas(alpha=1), got {method!r}")
    check_threat(threat)
    training = _adjusted(training, epochs, lr, batch_size)
    images, validation_images = _sets(train_set, validation_set, training)
    if len(images) < 2:
        raise DataError("one image is left to train on; expected at least 2, for the statistics of BatchNorm")
    if group.size > 1 and not (
        training.batch_size >= 2 * group.size and len(validation_images) >= group.size
    ):
        raise UsageError(
            f"{group.size} processes need batches of at least {2 * group.size} and {group.size} validation "
            f"images, got {training.batch_size} and {len(validation_images)}: start fewer"
        )
    model.to(checked_device(device) if device else next(model.parameters(), torch.empty(0)).device)
    # Not all that there are: the others are other processes'.
    gpus = list({p.device for p in model.parameters() if p.device.type == "cuda"})
    run = Run(folder) if folder is not None and group.first else None
    title = run.path.name if run else "training"
    display = Display(title, training.schedule.epochs, shown=progress, first=group.first)
    parts = {"method": method, "threat": threat, "training": training}
    table = config or {name: table_of(part, REGISTRIES) for name, part in parts.items()}
    with (
        locked(run.path, lambda: run.check_config(table, allow_changes)) if run else nullcontext(),
        caught_signals() if folder is not None else nullcontext(Requests()) as requests,
        torch.random.fork_rng(gpus),
        deterministic(training.deterministic),  # before a GPU is first used
        closing(Log(run)) as log,
        display.bars,
    ):
        _check_model(model, images)
        torch.manual_seed(training.seed)  # for dropout; all else has streams of its own
        if group.size > 1:  # however the ranks' models were made
            weights = group.from_first((model.state_dict(), {}))
            assert weights is not None
            model.load_state_dict(weights[0])
        data = {"data": images.fingerprint(), "validation": validation_images.fingerprint()}
        start = describe_model(model, built_from_config="model" in (about or {})) if run else {}
        name = fingerprint({"config": table, "model": start, **data})
        trainer = Trainer(
            model,
            images,
            validation_images,
            method,
            threat,
            training,
            log=log,
            display=display,
            requests=requests,
            group=group,
            about={**(about or {}), "config": fingerprint(table), **data, "run": name},
            description=start,
        )
        _warn_of_short_reach(trainer)
        if run:  # so that a disk that is too small is found before the first epoch
            run.require_space(sum(v.nbytes for v in model.state_dict().values()))
        trainer.restore(allow_changes)
        if run:
            run.write_config(table, trainer.about["run"])
        try:
            ended = trainer.train(on_step, on_epoch)
        except StopTraining as stop:
            ended = str(stop)
        if trainer.state.best:
            model.load_state_dict(trainer.state.best)
        plateau, path = trainer.progress.plateau, run.path if run else None
        result = Result(
            model.eval(), plateau.best_epoch, plateau.best, log.epochs, ended, log.seconds, folder=path
        )
        if result.best.get("constant"):
            display.warn(
                "WARNING: constant: the weights of the best epoch give every validation image the same "
                "answer, so their accuracy is the share of one class"
            )
        return result


def _adjusted(training: Training, epochs: int | None, lr: float | None, batch_size: int | None) -> Training:
    if epochs is not None:
        schedule = replace(training.schedule, epochs=epochs, ramp_epochs=0)  # which checks epochs
        schedule = replace(schedule, ramp_epochs=min(training.schedule.ramp_epochs, epochs // 2))
        training = replace(training, schedule=schedule)
    if lr is not None:
        training = replace(training, optimizer=replace(training.optimizer, lr=lr))
    return training if batch_size is None else replace(training, batch_size=batch_size)


def _warn_of_short_reach(trainer: Trainer) -> None:
    """Steps in pixels, as a preset has them, are too short for a larger ball or for one in another norm."""
    threat, validation = trainer.threat, trainer.training.validation
    attacks = {"method.attack": trainer.base_method.attack, "training.validation.attack": validation.attack}
    for name, attack in attacks.items():
        if attack is not None and attack.falls_short(threat):
            trainer.display.warn(
                f"the steps of {name} go {attack.reach(threat):.3g} in all, and eps is "
                f"{eps_text(threat.eps)}: most of the ball is out of its reach. Set a larger step_size, or "
                "relative_step in its place"
            )


def _sets(train_set: Any, validation_set: Any, training: Training) -> tuple[Images, Images]:
    images = as_images(train_set)
    if validation_set is None:
        return split(images, training.validation.size, training.seed)
    validation_images = as_images(validation_set, images.num_classes)
    if validation_images.shape != images.shape:
        raise DataError(
            f"validation images must be {images.shape}, as in training, got {validation_images.shape}"
        )
    return images, validation_images


def _check_model(model: nn.Module, images: Images) -> None:
    """Refuse a model that cannot be trained on these images, before anything is written."""
    weights = [p for p in model.parameters() if p.requires_grad]
    if not weights:
        raise UsageError("the model has no weights to train: expected at least one that requires a gradient")
    if any(p.is_meta for p in weights):
        raise UsageError("the model has weights on the device meta, which holds no values: load them first")
    with model_errors("before training", "Free memory, then start again"):
        logits = answer(model, images.pixels(slice(2), weights[0].device))
    expected = f"logits [B, {images.num_classes}], a finite number for each class"
    if logits.shape[1] < images.num_classes:
        one_too_many = logits.shape[1] == images.num_classes - 1 and images.empty_classes
        empty = f". Is there a class too many? {images.empty_classes}" if one_too_many else ""
        raise UsageError(f"the model gives {list(logits.shape)} for 2 images, expected {expected}{empty}")
    if not logits.isfinite().all():
        raise NumericError(f"the model's logits are not finite before training; expected {expected}")
