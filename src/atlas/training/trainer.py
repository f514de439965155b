"""The training loop: steps, validation after each epoch, and what is decided then."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from atlas.attacks import engine, frozen
from atlas.attacks.gradients import NotFinite
from atlas.checkpoint import same_tensors
from atlas.config import ConfigDict, differences, table_of
from atlas.data import AUGMENTS, Batch, Images, batches, num_batches
from atlas.distributed.process_group import ProcessGroup
from atlas.errors import (
    CheckpointError,
    Interrupted,
    NumericError,
    OutOfMemoryError,
    UsageError,
    is_out_of_memory,
    model_errors,
)
from atlas.files import write_atomic
from atlas.methods import Method, TrainingStep
from atlas.objectives import probe_squared_jacobian
from atlas.rng import Rng
from atlas.runs import Record
from atlas.signals import Requests
from atlas.threat import Threat
from atlas.training.display import Display
from atlas.training.log import Log
from atlas.training.precision import lowered, lowered_model, puts_channels_last, searched_model
from atlas.training.schedule import CollapseDetector, PlateauTracker, Validated
from atlas.training.settings import REGISTRIES, Training

PROBE_EVERY = 50
"""Batches between two probes of the Jacobian, of two passes each, about 1% of the work. The last batch of an
epoch is always probed."""
VALIDATION_BATCH = 256
"""Validation images attacked at a time, at most, unless `training.validation.batch_size` says otherwise."""
COLLAPSED = "collapse"
"""Why training ended, if `on_collapse` ended it."""
ROLLBACKS = 2
ALPHA_FACTOR = 4.0
"""A rollback raises alpha by this, and cuts the learning rate once."""
STOPPED = 1 << 16
"""Larger than the number of any signal: a callback has ended training."""


class StopTraining(Exception):
    """Raised by a callback of `fit` to end training; its message becomes `Result.ended`.

    The state is saved first, so that the run can be resumed.
    """


class TrainState:
    """All tensors of a run: the model, its optimiser, its average and its best weights."""

    def __init__(self, model: nn.Module, method: Method, training: Training, group: ProcessGroup) -> None:
        self.model, self.group = model, group
        self.channels_last = puts_channels_last(training.channels_last, model, method)
        if self.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in the stubs
        self.device = next(model.parameters()).device
        self.optimizer = training.optimizer.build(model.parameters())
        average = get_ema_multi_avg_fn(training.ema)  # type: ignore[no-untyped-call]
        with torch.device("cpu"):  # where its counter goes, whatever the default device is
            self.ema = AveragedModel(model, multi_avg_fn=average, use_buffers=True) if training.ema else None
        self.best: dict[str, Tensor] = {}

    @property
    def evaluated(self) -> nn.Module:
        """The model that is validated and kept: the average of the weights if there is one."""
        return self.ema.module if self.ema is not None else self.model

    def backward(self, loss: Tensor, weight: float = 1.0) -> Tensor:
        """Fresh gradients of the loss, of this weight among the ranks'; returns their norm, a scalar."""
        self.optimizer.zero_grad()
        weights = [p for p in self.model.parameters() if p.requires_grad]
        # Not into x', of which the Jacobian term has made a leaf that wants a gradient too.
        loss.backward(inputs=weights)  # type: ignore[no-untyped-call]
        self.group.mean_gradients(self.model, weight)
        self.group.mean_buffers(self.model, weight)
        gradients = [p.grad for p in weights if p.grad is not None]
        return torch.nn.utils.get_total_norm(gradients, foreach=True)

    def update(self, lr: float) -> None:
        """One step of the optimiser, and of the average."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with torch.device("cpu"):  # where Adam counts its steps, whatever the default device is
            self.optimizer.step()
        if self.ema is not None:
            self.ema.update_parameters(self.model)

    def keep_best(self) -> None:
        self.best = {k: v.detach().clone() for k, v in self.evaluated.state_dict().items()}

    def return_to_best(self) -> None:
        """Load the best weights and reset the optimiser."""
        self.model.load_state_dict(self.best)
        if self.ema is not None:
            self.ema.module.load_state_dict(self.best)
        self.optimizer.state.clear()

    def tensors(self) -> dict[str, Tensor]:
        """The whole state, by dotted names."""
        parts: dict[str, Mapping[str, Tensor]] = {"model": self.model.state_dict(), "best": self.best}
        if self.ema is not None:
            parts["ema"] = self.ema.state_dict()
        for number, slots in self.optimizer.state_dict()["state"].items():
            parts[f"optimizer.{number}"] = {k: v for k, v in slots.items() if isinstance(v, Tensor)}
        named = {f"{part}.{k}": v for part, tensors in parts.items() for k, v in tensors.items()}
        # Dropout draws from torch's own generators.
        if self.device.type == "cuda":
            named["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        return named | {"torch_rng": torch.get_rng_state()}

    def sizes(self) -> tuple[int, int]:
        """Bytes of the weights, and of a state at most: an optimiser keeps at most two numbers per weight."""
        weights = sum(v.nbytes for v in self.model.state_dict().values())
        slots = 2 * sum(p.nbytes for p in self.model.parameters())
        return weights, slots + (3 if self.ema is not None else 2) * weights

    def trained_to(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether the model has the newest or the best weights of a state, because it was trained there."""
        return any(same_tensors(self.model.state_dict(), _under(tensors, part)) for part in ("model", "best"))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a state made by `tensors`."""
        try:
            self.model.load_state_dict(_under(tensors, "model"))
            if self.ema is not None:
                self.ema.load_state_dict(_under(tensors, "ema"))
            slots: dict[int, dict[str, Tensor]] = {}
            for key, tensor in _under(tensors, "optimizer").items():
                number, name = key.split(".", 1)
                slots.setdefault(int(number), {})[name] = tensor
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": slots})
            torch.set_rng_state(tensors["torch_rng"])
            if self.device.type == "cuda" and "cuda_rng" in tensors:  # not in the state of a CPU
                torch.cuda.set_rng_state(tensors["cuda_rng"], self.device)
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            if is_out_of_memory(error):
                raise OutOfMemoryError(
                    f"out of memory while resuming: {error}. Free memory, then resume"
                ) from error
            raise CheckpointError(
                f"the saved state does not fit this model and optimiser: {error}"
            ) from error
        self.best = {k: v.to(self.device) for k, v in _under(tensors, "best").items()}


def _under(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors whose names start with ``part.``, without it."""
    return {k.removeprefix(part + "."): v for k, v in tensors.items() if k.startswith(part + ".")}


@dataclass
class Progress:
    """Counters, the sums of the current epoch, and the plateau tracker and collapse detector."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    rollbacks: int = 0
    ended: str | None = None
    seen: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    """Sums over the `seen` images of this epoch."""
    probes: int = 0
    probed: float = 0.0
    """Sum of the squared Jacobian norms that were probed in this epoch."""
    jacobian: float = 0.0
    """Their mean in the last epoch that had any."""
    plateau: PlateauTracker = field(default_factory=PlateauTracker)
    collapse: CollapseDetector = field(default_factory=CollapseDetector)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Progress:
        """From what `dataclasses.asdict` made; older versions wrote "guide" and "watch"."""
        rest = dict(table)
        plateau = rest.pop("guide" if "guide" in rest else "plateau")
        collapse = rest.pop("watch" if "watch" in rest else "collapse")
        return cls(**rest, plateau=PlateauTracker(**plateau), collapse=CollapseDetector(**collapse))

    def add(self, means: Mapping[str, float], count: int) -> None:
        """Add the means over a batch of `count` images."""
        self.seen += count
        for name, mean in means.items():
            self.sums[name] = self.sums.get(name, 0.0) + mean * count

    def probe(self, jacobian: float) -> None:
        self.probes += 1
        self.probed += jacobian
        self.jacobian = self.probed / self.probes

    def means(self) -> dict[str, float]:
        return {name: total / self.seen for name, total in self.sums.items()}

    def reset_validation(self) -> None:
        """Reset the best epoch, the plateau tracker and the collapse detector, but not the lr cuts."""
        self.plateau, self.collapse = PlateauTracker(cuts=self.plateau.cuts), CollapseDetector()

    def next_epoch(self) -> None:
        self.epoch += 1
        self.batch = self.seen = self.probes = 0
        self.probed = 0.0
        self.sums = {}


class Trainer:
    """Trains by epochs. Writes no files but the log."""

    def __init__(
        self,
        model: nn.Module,
        images: Images,
        validation_images: Images,
        method: Method,
        threat: Threat,
        training: Training,
        *,
        log: Log | None = None,
        display: Display | None = None,
        requests: Requests | None = None,
        group: ProcessGroup = ProcessGroup(),
    ) -> None:
        self.images, self.validation_images = images, validation_images
        self.base_method, self.threat, self.training = method, threat, training
        self.log, self.requests, self.group = log or Log(None), requests or Requests(), group
        self.display = display or Display("", 1, shown=False)
        self.schedule = training.schedule
        self.state = TrainState(model, method, training, group)
        self.lowered = partial(lowered, training.precision, device=self.state.device)
        self.answer = lowered_model(training.precision, model, self.state.device)
        self.in_eval_mode = [module for module in model.modules() if model.training and not module.training]
        """Parts that the user has put into eval mode, such as a BatchNorm whose statistics are to stay."""
        self.num_batches = num_batches(len(images), training.batch_size)
        self.progress = Progress()
        self.warned_of_dead_model = False
        self.constant = False
        """Whether every validation image got the same answer after the last epoch."""
        self.stop: StopTraining | None = None
        self.means: dict[str, float] = {}
        """Over the last batch: the loss, its terms, the norm of the gradient, and the accuracy."""
        self.began = time.monotonic()

    def table(self) -> dict[str, Any]:
        """All of the state but the tensors, as a plain table; the metrics are on disk first."""
        return {
            "progress": asdict(self.progress),
            "metrics_bytes": self.log.flush(),
            "validated_with": self.validated_with,
        }

    @property
    def validated_with(self) -> ConfigDict:
        """What the accuracies of two epochs must have in common to be compared."""
        parts = {"threat": self.threat, "training.validation.attack": self.training.validation.attack}
        return {name: table_of(part, REGISTRIES) for name, part in parts.items()}

    def resume(self, table: Mapping[str, Any]) -> None:
        """Continue from what `table` made."""
        progress = self.progress = Progress.of(table["progress"])
        changed = differences(table.get("validated_with") or self.validated_with, self.validated_with)
        if changed:
            progress.reset_validation()
        if progress.ended is not None and (changed or progress.ended != COLLAPSED):
            # The schedule may be a longer one now.
            progress.ended = progress.plateau.finished(progress.epoch - 1, self.schedule)
        if changed and progress.ended:
            raise UsageError(
                f"{'; '.join(changed)}: {progress.ended}, so no epoch is left to be validated with the new "
                "values. Set a larger training.schedule.epochs"
            )
        self.log.open(table["metrics_bytes"], progress.step)
        if changed:
            self.display.warn(
                f"{'; '.join(changed)}: earlier accuracies cannot be compared with later ones, so the best "
                "epoch, the plateau tracker and the collapse detector are reset"
            )

    @property
    def method(self) -> Method:
        """The method, with a larger alpha after each rollback."""
        alpha = getattr(self.base_method, "alpha", 0.0)
        if not (self.progress.rollbacks and alpha):
            return self.base_method
        return replace(self.base_method, alpha=alpha * ALPHA_FACTOR**self.progress.rollbacks)  # type: ignore[type-var]

    @property
    def now(self) -> float:
        """Epochs done so far, with the part of the current one."""
        return self.progress.epoch + self.progress.batch / self.num_batches

    @property
    def lr(self) -> float:
        return self.training.optimizer.lr * self.schedule.lr_factor(self.now, self.progress.plateau.cuts)

    # --- an epoch of steps ---

    def train_epoch(self, on_step: Callable[[Record], None], after_step: Callable[[], None]) -> None:
        """The rest of the current epoch. A signal or StopTraining ends it between two steps."""
        progress, self.began = self.progress, time.monotonic()
        self.log.time(event="epoch", epoch=progress.epoch, batch=progress.batch, processes=self.group.size)
        self.display.begin(f"epoch {progress.epoch + 1}", self.num_batches, progress.batch)
        remaining = batches(
            self.images,
            self.training.batch_size,
            seed=self.training.seed,
            epoch=progress.epoch,
            augment=AUGMENTS[self.training.augment],
            device=self.state.device,
            first=progress.batch,
        )
        for batch in remaining:
            where = f"in epoch {progress.epoch + 1}, step {progress.step + 1}"
            began, lr = time.perf_counter(), self.lr
            with model_errors(where, self.remedy("training.batch_size")):
                self.step(batch)
            self.display.advance_to(progress.batch, epochs=self.now)
            seconds = time.perf_counter() - began
            at = {"kind": "step", "epoch": progress.epoch, "step": progress.step}
            self.call(on_step, {**at, "lr": lr, **self.means, "seconds": seconds})
            self.check_requests(self.requests.caught)
            after_step()

    def call(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call a user's callback in the first process."""
        if self.group.first:
            try:
                callback(*arguments)
            except StopTraining as stop:
                self.stop = stop

    def check_requests(self, caught: int | None = None) -> None:
        """Stop all ranks after the same step, if one has caught a signal or a callback raised StopTraining.

        Raises:
            Interrupted: after a signal.
            StopTraining: if a callback raised it.
        """
        agreed = self.group.agree(STOPPED if self.stop else caught)
        if agreed == STOPPED:
            raise self.stop or StopTraining("stopped by the first process")
        if agreed is not None:
            raise Interrupted(agreed)

    def remedy(self, setting: str) -> str:
        """What to do when memory has run out."""
        smaller = f"Free memory or set a smaller {setting}"
        if self.log.run is None:
            return f"{smaller}, then start again"
        return f"{smaller} (with --allow-changes), then resume: what was saved before is intact"

    def step(self, batch: Batch) -> None:
        """One update of the weights."""
        progress, model, method = self.progress, self.state.model, self.method
        share = self.group.share(len(batch.ids))
        ids, x, y = (column[share.part] for column in batch)
        x = x.contiguous(memory_format=torch.channels_last) if self.state.channels_last else x
        self.group.reseed(self.training.seed, progress.step)
        ramp = self.schedule.ramp(self.now)
        rng = Rng.lanes(self.training.seed, ids).fold("train", progress.epoch)
        progress_made = min(self.now / self.schedule.epochs, 1.0)
        step = TrainingStep(self.threat.at(ramp * self.threat.eps), rng, progress.step, progress_made)
        try:
            with self.lowered("craft"):
                x_adv = method.craft(model, x, y, step.fold("attack"), self.training.crafting_mode)
        except NotFinite as error:
            self.refuse({"attack": math.nan}, ids[error.lanes])
        model.train()
        for module in self.in_eval_mode:
            module.eval()
        with self.lowered("terms"):
            losses, logits = method.terms(self.answer, x, x_adv, y, step.fold("terms"))
        loss = method.weigh(losses, ramp)
        gradient = self.state.backward(loss, share.weight)
        accuracy = {self.accuracy: (logits.argmax(1) == y).float()}
        values = {"loss": loss, "gradient": gradient, **losses, **accuracy}
        own = torch.stack([value.detach().float().mean() for value in values.values()]).tolist()
        means = dict(zip(values, self.group.mean(own, share.weight), strict=True))
        if not all(map(math.isfinite, means.values())):
            self.refuse(means, batch.ids)
        progress.add(means, len(batch.ids))
        self.state.update(self.lr)
        progress.batch += 1
        progress.step += 1
        if progress.batch % PROBE_EVERY == 0 or progress.batch == self.num_batches:
            self.probe(x_adv, rng.fold("probe"), batch.ids, share.weight)
        self.means = means

    @property
    def accuracy(self) -> str:
        """The name of the accuracy on the images that are trained on."""
        return "train_clean" if self.base_method.attack is None else "train_adv"

    def refuse(self, numbers: Mapping[str, float], ids: Tensor) -> NoReturn:
        at = self.progress
        where = {"epoch": at.epoch, "batch": at.batch, "step": at.step}
        report = where | {"terms": {k: repr(v) for k, v in numbers.items()}, "examples": ids.tolist()}
        written = ""
        if self.log.run is not None:
            path = self.log.run.not_finite_path
            write_atomic(path, (json.dumps(report, indent=2) + "\n").encode())
            written = f"; terms and examples are in {path}"
        raise NumericError(
            f"not finite in epoch {at.epoch + 1}, step {at.step + 1}, before the next update: "
            f"{dict(numbers)}{written}. Try a smaller learning rate, or look at these examples."
        )

    def probe(self, x_adv: Tensor, rng: Rng, ids: Tensor, weight: float) -> None:
        """Log ||J(x')||_F^2, which jumps in a collapse."""
        with frozen(self.state.model):
            own = probe_squared_jacobian(self.state.model, x_adv, rng).mean().item()
        (jacobian,) = self.group.mean([own], weight)
        if not math.isfinite(jacobian):
            self.refuse({"jacobian": jacobian}, ids)
        at = self.progress
        at.probe(jacobian)
        self.log.add({"kind": "probe", "epoch": at.epoch, "step": at.step, "jacobian": jacobian})

    # --- the end of an epoch ---

    def validate(self) -> Validated:
        """Clean and robust accuracy on validation images, at the full eps and always from the same starts.

        Each rank attacks its part of them. One that a signal interrupts says so when the others are done.
        """
        images = self.validation_images
        classes = images.num_classes
        counts = [0] * 2 * classes
        where = f"in validation after epoch {self.progress.epoch + 1}"
        with suppress(Interrupted), model_errors(where, self.remedy("training.validation.batch_size")):
            counts = self.attack_validation_images()
        self.check_requests(self.requests.caught)
        counts = list(self.group.total(counts))
        sizes = images.y.bincount(minlength=classes).tolist()
        return Validated.of(sizes, counts[:classes], counts[classes:])

    def attack_validation_images(self) -> list[int]:
        """How many of this rank's images of each class are classified correctly, clean and under attack."""
        images, settings, device = self.validation_images, self.training.validation, self.state.device
        part = slice(self.group.rank, None, self.group.size)
        x, y = images.pixels(part, device), images.y[part].to(device)
        rng = Rng.lanes(self.training.seed, images.ids[part].to(device)).fold("validation")
        self.display.begin("validation", len(y))

        def each_step(settled: int) -> None:
            self.display.advance_to(settled)
            self.requests.check()

        attack, model = settings.attack, self.state.evaluated
        search = None if attack.needs_precision else searched_model(self.training.precision, model, device)
        batch_size = settings.batch_size
        if batch_size is None:  # no more than a step of training holds
            batch_size = min(VALIDATION_BATCH, math.ceil(self.training.batch_size / self.group.size))
        outcome = engine.run(
            attack, model, x, y, self.threat, rng, batch_size=batch_size, search=search, each_step=each_step
        )
        outcome.checked()
        masks = (outcome.clean.cpu(), outcome.robust.cpu())
        right = [images.y[part][mask].bincount(minlength=images.num_classes) for mask in masks]
        return torch.cat(right).tolist()

    def close_epoch(self, validated: Validated) -> Record:
        """Log the epoch and decide how to continue."""
        at, epoch, clean, robust = self.progress, self.progress.epoch, validated.clean, validated.robust
        record: Record = {"kind": "epoch", "epoch": epoch, "step": at.step}
        at.batch -= 1  # eps and lr as they were in the last step
        record |= {"eps": self.schedule.ramp(self.now) * self.threat.eps, "lr": self.lr, **at.means()}
        record |= {"jacobian": at.jacobian, "val_clean": clean, "val_robust": robust}
        if validated.imbalanced:
            record |= {"val_majority": validated.majority, "val_balanced": validated.balanced}
        if validated.one_answer is not None:
            record["constant"] = True
        collapse = at.collapse.check(epoch, robust, clean, at.jacobian, len(self.validation_images))
        record["best"] = at.plateau.update(epoch, robust, self.schedule)
        record["collapse"] = collapse is not None
        if record["best"]:
            self.state.keep_best()
        self.log.add(record)
        self.display.epoch(record, self.accuracy, self.note_time("epoch done"))
        self.warn_of_constant_answers(validated, record["jacobian"])
        at.next_epoch()
        at.ended = at.plateau.finished(epoch, self.schedule)
        if collapse:
            self.handle(collapse)
        return record

    def warn_of_constant_answers(self, validated: Validated, jacobian: float) -> None:
        """Once each time that it begins; a model can recover."""
        label, before = validated.one_answer, self.constant
        self.constant = label is not None
        if label is not None and not before:
            names = self.validation_images.class_names
            name = f"{label} ({names[label]})" if names else str(label)
            self.display.warn(
                f"WARNING: constant: after epoch {self.progress.epoch + 1} every validation image gets the "
                f"same answer, class {name}: the accuracy is the share of that class, {validated.clean:.1%}. "
                "Try a smaller learning rate, let eps grow more slowly (training.schedule.ramp_epochs), or "
                "balance the classes"
            )
        if jacobian == 0 and not self.warned_of_dead_model:
            self.warned_of_dead_model = True
            self.display.warn(
                "||J||^2 is 0: the model gives the same answer to every image, and is not likely to learn "
                "again. Try a smaller learning rate, or let eps grow more slowly "
                "(training.schedule.ramp_epochs)"
            )

    def note_time(self, event: str) -> float:
        """Log the seconds since the epoch, or its rest, began."""
        seconds = time.monotonic() - self.began
        self.log.time(event=event, epoch=self.progress.epoch, seconds=round(seconds, 3))
        return seconds

    def handle(self, collapse: str) -> None:
        """Announce a collapse, then do what `on_collapse` says."""
        at, action = self.progress, self.training.on_collapse
        self.display.warn(collapse)
        if action == "rollback" and at.rollbacks < ROLLBACKS and at.ended is None:
            at.rollbacks += 1
            at.plateau.cut()
            at.plateau.since_best = 0
            at.collapse.collapsed = False
            self.state.return_to_best()
            self.display.warn(
                f"rolled back to epoch {at.plateau.best_epoch + 1}; continuing with alpha "
                f"{getattr(self.method, 'alpha', 0.0):.2g} and learning rate {self.lr:.2g}"
            )
        elif action != "continue":
            at.ended = at.ended or COLLAPSED
