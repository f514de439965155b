"""`fit` trains any model on any images with any method, under the guided schedule.

An epoch: batches -> x_adv -> terms -> loss -> step; then validation -> schedule, collapse detector -> state.
All randomness is a function of (seed, example, epoch), so a run that was killed resumes with bit-identical
results on a CPU; on a GPU that takes `training.deterministic`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atlas.attacks import frozen
from atlas.attacks.model_variants import check_autograd
from atlas.config import check_arguments, fingerprint, table_of
from atlas.data import Images, as_images, batches, split
from atlas.data.images import check_left_alone
from atlas.distributed.launch import checked_device
from atlas.distributed.process_group import ProcessGroup
from atlas.errors import DataError, NumericError, UsageError, is_ctrl_c
from atlas.files import locked
from atlas.methods import Method
from atlas.runs import Record, Run
from atlas.signals import Requests, caught_signals
from atlas.terminal import duration
from atlas.threat import Threat, check_threat, eps_text
from atlas.training.checkpointer import Checkpointer, Result, description
from atlas.training.display import Display
from atlas.training.log import Log
from atlas.training.precision import deterministic
from atlas.training.schedule import Schedule
from atlas.training.settings import REGISTRIES, Training
from atlas.training.trainer import Trainer


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
            may take up to 100 epochs, and how long that may be is printed first.
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
    with deterministic(training.deterministic):  # before a GPU is first used
        logits = _try(model, images)
    # Not all that there are: the others are other processes'.
    gpus = list({p.device for p in model.parameters() if p.device.type == "cuda"})
    run = Run(folder) if folder is not None and group.first else None
    title = run.path.name if run else "training"
    parts = {"method": method, "threat": threat, "training": training}
    table = config or {name: table_of(part, REGISTRIES) for name, part in parts.items()}
    with (
        locked(run.path, lambda: run.check_config(table, allow_changes)) if run else nullcontext(),
        caught_signals() if folder is not None else nullcontext(Requests()) as requests,
        torch.random.fork_rng(gpus),
        deterministic(training.deterministic),
        Display(title, training.schedule.epochs, shown=progress, first=group.first) as display,
        Log(run) as log,
    ):
        torch.manual_seed(training.seed)  # for dropout; all else has streams of its own
        if group.size > 1:  # however the ranks' models were made
            weights = group.from_first((model.state_dict(), {}))
            assert weights is not None
            model.load_state_dict(weights[0])
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
        )
        _warn_of_short_reach(trainer)
        seen = {"data": images.fingerprint(), "validation": validation_images.fingerprint()}
        start = description(model, logits, built_from_config="model" in (about or {})) if run else {}
        known = {**(about or {}), "config": fingerprint(table), **seen}
        known["run"] = fingerprint({"config": table, "model": start, **seen})
        checkpointer = Checkpointer(trainer, run, known, start)
        if run:  # so that a disk that is too small is found before the first epoch
            run.require_space(*trainer.state.sizes())
        checkpointer.restore(allow_changes)
        if run:
            run.write_config(table, checkpointer.about["run"])
        if epochs is None and training.schedule == Schedule() and trainer.progress.step == 0:
            _say_how_long(trainer)
        return checkpointer.train(on_step, on_epoch)


def _adjusted(training: Training, epochs: int | None, lr: float | None, batch_size: int | None) -> Training:
    if epochs is not None:
        schedule = replace(training.schedule, epochs=epochs, ramp_epochs=0)  # which checks epochs
        schedule = replace(schedule, ramp_epochs=min(training.schedule.ramp_epochs, epochs // 2))
        training = replace(training, schedule=schedule)
    if lr is not None:
        training = replace(training, optimizer=replace(training.optimizer, lr=lr))
    return training if batch_size is None else replace(training, batch_size=batch_size)


def _say_how_long(trainer: Trainer) -> None:
    """Time a step and the validation of a batch on a copy of the model, and say what the epochs may take."""
    if trainer.display.console.quiet or trainer.group.size > 1:
        return
    training, schedule, images = trainer.training, trainer.schedule, trainer.images
    device = trainer.state.device
    batch = next(batches(images, training.batch_size, seed=training.seed, epoch=0, device=device))
    # A model that cannot be copied or that fails is no reason not to start: training says what fails.
    with suppress(Exception), torch.random.fork_rng([device] if device.type == "cuda" else []):
        full = replace(training, schedule=replace(schedule, ramp_epochs=0))
        few, model = Images(batch.x.cpu(), batch.y.cpu(), images.num_classes), deepcopy(trainer.state.model)
        trial = Trainer(model, few, few, trainer.base_method, trainer.threat, full)
        trial.step(batch)  # the first takes longer
        began = time.monotonic()
        trial.step(batch)
        stepped = time.monotonic()
        trial.attack_validation_images()
        share = len(trainer.validation_images) / len(batch.ids)
        epoch = (stepped - began) * trainer.num_batches + (time.monotonic() - stepped) * share
        trainer.display.say(
            f"an epoch takes about {duration(epoch)} here. Training ends after {schedule.patience} epochs "
            f"without gain, and after {schedule.epochs} epochs ({duration(epoch * schedule.epochs)}) at the "
            "latest; set another number with epochs= (training.schedule.epochs)"
        )


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


def _try(model: nn.Module, images: Images) -> Tensor:
    """The model's logits of the first image, twice. A custom model may fail: nothing is written yet."""
    weights = [p for p in model.parameters() if p.requires_grad]
    if not weights:
        raise UsageError("the model has no weights to train: expected at least one that requires a gradient")
    if any(p.is_meta for p in weights):
        raise UsageError("the model has weights on the device meta, which holds no values: load them first")
    x = images.pixels(torch.zeros(2, dtype=torch.int64, device="cpu"), weights[0].device)
    try:
        with frozen(model), torch.no_grad():
            logits = model(given := x.clone())
    except (Exception, SystemExit) as error:  # a custom model can raise anything
        if is_ctrl_c(error):
            raise
        raise UsageError(
            f"the model fails on images of shape {images.shape}: {type(error).__name__}: {error}"
        ) from error
    check_left_alone(given, x)
    expected = f"logits [B, {images.num_classes}], a finite number for each class"
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or logits.shape[1] < images.num_classes:
        got = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        empty = f". Is there a class too many? {images.empty_classes}" if images.empty_classes else ""
        raise UsageError(f"the model returns {got} for 2 images, expected {expected}{empty}")
    if not logits.isfinite().all():
        raise NumericError(f"the model's logits are not finite before training; expected {expected}")
    return logits
