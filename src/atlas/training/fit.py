"""The training loop: `fit` any model on any images with any method, under the guided schedule.

An epoch: batches -> x_adv -> terms -> loss -> step; then validation -> schedule and watch -> state.
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
from atlas.runs import RunFolder
from atlas.signals import Requests, caught_signals
from atlas.terminal import duration
from atlas.threat import Threat, check_threat, eps_text
from atlas.training.checkpointer import Checkpointer, Result
from atlas.training.display import Display
from atlas.training.identity import description
from atlas.training.log import Log, Record
from atlas.training.precision import deterministic
from atlas.training.schedule import Schedule
from atlas.training.settings import REGISTRIES, Training
from atlas.training.trainer import Trainer


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
    each_epoch: Callable[[Sequence[Record]], None] = lambda records: None,
    progress: bool = True,
    ranks: ProcessGroup = ProcessGroup(),
) -> Result:
    """Train `model` in place and return it with the weights of its best epoch, ready to be asked (`eval()`).

    `train_set` and `validation_set`: Images, an (x, y) pair, a data set or a DataLoader. Without a
    validation set, `training.validation.size` of the training images are set apart. `epochs`, `lr` and
    `batch_size` replace those of `training`; the ramp of eps then takes at most half of the `epochs`. Without
    them training may take up to 100 epochs, and how long that may be is said first. With a folder, everything
    is written there, and a run that is found there resumes: data, `config` (by default the method, threat and
    training) and the model with its initial weights must be the same, unless `allow_changes`. `about` is
    written into the weights.
    `each_epoch` is called after every epoch, once it is saved, with the records of all epochs so far; what
    it raises ends the run, which can go on later. `ranks` are the processes that train this model together
    (`with connected() as ranks:`, under torchrun): the first of them alone writes, speaks and calls
    `each_epoch`.
    """
    check_autograd()
    if not isinstance(model, nn.Module):
        raise UsageError(f"the model is a {type(model).__name__}; wanted an nn.Module with weights to train")
    if not isinstance(method, Method):
        raise UsageError(
            f"method is {method!r}; wanted one of atlas.methods, such as Atlas(alpha=1e-4, beta=1)"
        )
    check_threat(threat)
    training = _adjusted(training, epochs, lr, batch_size)
    images, held_out = _sets(train_set, validation_set, training)
    if len(images) < 2:
        raise DataError(
            "one image is left to train on; wanted 2 or more, of which BatchNorm takes statistics"
        )
    _check_shares(ranks, training, held_out)
    model.to(checked_device(device) if device else next(model.parameters(), torch.empty(0)).device)
    with deterministic(training.deterministic):  # before a GPU is first used
        logits = _try(model, images)
    # Not all that there are: the others are other processes'.
    gpus = list({p.device for p in model.parameters() if p.device.type == "cuda"})
    place = RunFolder(Path(folder)) if folder is not None and ranks.first else None
    title = place.path.name if place else "training"
    parts = {"method": method, "threat": threat, "training": training}
    table = config or {name: table_of(part, REGISTRIES) for name, part in parts.items()}
    with (
        locked(place.path, lambda: place.check_config(table, allow_changes)) if place else nullcontext(),
        caught_signals() if folder is not None else nullcontext(Requests()) as requests,
        torch.random.fork_rng(gpus),
        deterministic(training.deterministic),
        Display(title, training.schedule.epochs, shown=progress, first=ranks.first) as display,
        Log(place) as log,
    ):
        torch.manual_seed(training.seed)  # for dropout; all else has streams of its own
        _start_alike(model, ranks)
        trainer = Trainer(model, images, held_out, method, threat, training, log, display, requests, ranks)
        _warn_of_short_reach(trainer)
        seen = {"data": images.fingerprint(), "validation": held_out.fingerprint()}
        start = description(model, logits, built_from_config="model" in (about or {})) if place else {}
        known = {**(about or {}), "config": fingerprint(table), **seen}
        known["run"] = fingerprint({"config": table, "model": start, **seen})
        keeper = Checkpointer(trainer, place, known, start)
        keeper.require_room()
        keeper.restore(allow_changes)
        if place:
            place.write_config(table, keeper.about["run"])
        if epochs is None and training.schedule == Schedule() and trainer.at.step == 0:
            _say_how_long(trainer)
        return keeper.to_the_end(each_epoch if ranks.first else lambda records: None)


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
    if trainer.display.console.quiet or trainer.ranks.size > 1:
        return
    training, schedule, images = trainer.training, trainer.schedule, trainer.images
    device = trainer.learner.device
    batch = next(batches(images, training.batch_size, seed=training.seed, epoch=0, device=device))
    gpus = [device] if device.type == "cuda" else []
    # A model that cannot be copied or that fails is no reason not to start: training says what fails.
    with suppress(Exception), torch.random.fork_rng(gpus):
        full = replace(training, schedule=replace(schedule, ramp_epochs=0))
        model = deepcopy(trainer.learner.model)
        trial = Trainer.of_batch(model, batch, images.num_classes, trainer.base_method, trainer.threat, full)
        trial.step(batch)  # the first takes longer
        times = [_seconds(lambda: trial.step(batch)), _seconds(trial.attack_validation_images)]
        epoch = times[0] * trainer.num_batches + times[1] * len(trainer.held_out) / len(batch.ids)
        trainer.display.say(
            f"an epoch takes about {duration(epoch)} here. Training ends after {schedule.patience} epochs "
            f"without gain, and after {schedule.epochs} epochs ({duration(epoch * schedule.epochs)}) at the "
            "latest; set another number with epochs= (training.schedule.epochs)"
        )


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _check_shares(ranks: ProcessGroup, training: Training, held_out: Images) -> None:
    if ranks.size > 1 and not (training.batch_size >= 2 * ranks.size and len(held_out) >= ranks.size):
        raise UsageError(
            f"{ranks.size} processes share batches of {training.batch_size} and {len(held_out)} validation "
            f"images; wanted batches of {2 * ranks.size} or more and an image to validate each: start fewer"
        )


def _warn_of_short_reach(trainer: Trainer) -> None:
    """Steps in pixels, as a preset has them, are too short for a larger ball or for one in another norm."""
    threat, attacks = trainer.threat, {"method.attack": trainer.base_method.attack}
    for name, attack in (
        attacks | {"training.validation.attack": trainer.training.validation.attack}
    ).items():
        if attack is not None and attack.falls_short(threat):
            trainer.display.warn(
                f"the steps of {name} go {attack.reach(threat):.3g} in all, and eps is "
                f"{eps_text(threat.eps)}: most of the ball is out of its reach. Set a larger step_size, or "
                "relative_step in its place"
            )


def _start_alike(model: nn.Module, ranks: ProcessGroup) -> None:
    """Give all ranks the first one's weights, however their models were made."""
    if ranks.size > 1:
        state = ranks.from_first((model.state_dict(), {}))
        assert state is not None
        model.load_state_dict(state[0])


def _sets(train_set: Any, validation_set: Any, training: Training) -> tuple[Images, Images]:
    images = as_images(train_set)
    if validation_set is None:
        return split(images, training.validation.size, training.seed)
    held_out = as_images(validation_set, images.num_classes)
    if held_out.shape != images.shape:
        raise DataError(f"validation images are {held_out.shape}; wanted {images.shape}, as in training")
    return images, held_out


def _try(model: nn.Module, images: Images) -> Tensor:
    """The model's logits of the first image, twice. A custom model may fail: nothing is written yet."""
    weights = [p for p in model.parameters() if p.requires_grad]
    if not weights:
        raise UsageError("the model has no weights to train: wanted at least one that requires a gradient")
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
    wanted = f"logits [B, {images.num_classes}], a finite number for each class"
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or logits.shape[1] < images.num_classes:
        got = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        empty = f". Is there a class too many? {images.empty_classes}" if images.empty_classes else ""
        raise UsageError(f"the model returns {got} for 2 images, expected {wanted}{empty}")
    if not logits.isfinite().all():
        raise NumericError(f"the model's logits are not finite before training; wanted {wanted}")
    return logits
