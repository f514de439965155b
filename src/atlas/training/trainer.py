"""The training loop, top to bottom: epochs of steps, validation, what is decided then, checkpoints."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from atlas.attacks import engine, frozen
from atlas.attacks.gradients import NotFinite
from atlas.checkpoint import save_tensors
from atlas.config import ConfigDict, differences, table_of
from atlas.data import AUGMENTS, Batch, Images, batches, num_batches
from atlas.distributed.process_group import ProcessGroup, State
from atlas.errors import CheckpointError, Interrupted, NumericError, UsageError, model_errors
from atlas.files import write_atomic
from atlas.methods import Method, TrainingStep
from atlas.objectives import logits_and_squared_jacobian
from atlas.rng import Rng
from atlas.runs import Record
from atlas.signals import Requests
from atlas.terminal import duration
from atlas.threat import Threat
from atlas.training.display import Display
from atlas.training.log import Log
from atlas.training.precision import in_bfloat16, lowered
from atlas.training.schedule import CollapseDetector, PlateauTracker, Schedule, accuracies
from atlas.training.settings import REGISTRIES, Training
from atlas.training.state import Progress, TrainState

PROBE_EVERY = 50
"""Batches between two probes of the Jacobian, of two passes each, about 1% of the work. The last batch of an
epoch is always probed."""
COLLAPSED = "collapse"
"""Why training ended, if `on_collapse` ended it."""
ROLLBACKS = 2
ALPHA_FACTOR = 4.0
"""A rollback raises alpha by this, and cuts the learning rate once."""
REMEDY = (
    "Free memory or set a smaller {} (with --allow-changes), then resume: what was saved before is intact"
)
STOPPED = 1 << 16
"""Larger than the number of any signal: a callback has ended training."""


class StopTraining(Exception):
    """Raised by a callback of `fit` to end training; its message becomes `Result.ended`.

    The state is saved first, so that the run can be resumed.
    """


@dataclass(eq=False)
class Trainer:
    """Trains a model epoch by epoch, and saves what that needs in the folder of the log's run, if any."""

    model: nn.Module
    images: Images
    validation_images: Images
    base_method: Method
    threat: Threat
    training: Training
    _: KW_ONLY
    log: Log = field(default_factory=lambda: Log(None))
    display: Display = field(default_factory=lambda: Display("", 1, shown=False))
    requests: Requests = field(default_factory=Requests)
    group: ProcessGroup = ProcessGroup()
    about: Mapping[str, Any] = field(default_factory=dict)
    """What is written beside weights: the run, its data, and how to build the model."""
    description: ConfigDict = field(default_factory=dict)
    """Of the model before it was trained."""

    def __post_init__(self) -> None:
        self.schedule = self.training.schedule
        self.state = TrainState(self.model, self.base_method, self.training, self.group)
        self.progress = Progress()
        device, precision = self.state.device, self.training.precision
        self.lowered = partial(lowered, precision, device=device)
        # The squared Jacobian leaves autocast, this enters it again.
        self.model_of_terms = in_bfloat16(self.model, device) if precision == "bfloat16-all" else self.model
        modules = self.model.modules() if self.model.training else ()
        self.in_eval_mode = [module for module in modules if not module.training]
        """Parts that the user has put into eval mode, such as a BatchNorm whose statistics are to stay."""
        self.accuracy = "train_clean" if self.base_method.attack is None else "train_adv"
        """The name of the accuracy on the images that are trained on."""
        self.num_batches = num_batches(len(self.images), self.training.batch_size)
        self.means: dict[str, float] = {}
        """Over the last batch: the loss, its terms, the norm of the gradient, and the accuracy."""
        self.stop: StopTraining | None = None
        self.began = self.saved_at = time.monotonic()

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

    # --- the loop ---

    def train(self, on_step: Callable[[Record], None], on_epoch: Callable[[Sequence[Record]], None]) -> str:
        """Train to the end; why it ended. A signal or a callback ends it earlier, once all is saved."""
        while self.progress.ended is None:
            try:
                self.train_epoch(on_step)
                validated = self.validate()
            except (Interrupted, StopTraining):
                self.note_time("interrupted")
                self.save()
                self.group.wait()  # the launcher may end all ranks as soon as one has exited
                raise
            if self.finish_epoch(validated)["best"]:
                self.export_best()
            self.save()
            self.call(on_epoch, self.log.epochs)
            self.check_requests()
        if self.log.run is not None:
            weights, epoch = self.state.evaluated.state_dict(), self.progress.epoch - 1
            save_tensors(self.log.run.last_path, weights, {**self.about, "epoch": epoch})
        return self.progress.ended

    def train_epoch(self, on_step: Callable[[Record], None]) -> None:
        """The rest of the current epoch. A signal or StopTraining ends it between two steps."""
        at, training, self.began = self.progress, self.training, time.monotonic()
        self.log.time(event="epoch", epoch=at.epoch, batch=at.batch, processes=self.group.size)
        self.display.begin(f"epoch {at.epoch + 1}", self.num_batches, at.batch)
        size, seed, augment, device = training.batch_size, training.seed, training.augment, self.state.device
        options: dict[str, Any] = {"augment": AUGMENTS[augment], "device": device, "first": at.batch}
        for batch in batches(self.images, size, seed=seed, epoch=at.epoch, **options):
            began, lr = time.perf_counter(), self.lr
            where = f"in epoch {at.epoch + 1}, step {at.step + 1}"
            with model_errors(where, REMEDY.format("training.batch_size")):
                self.step(batch)
            self.display.advance_to(at.batch, epochs=self.now)
            record = {"kind": "step", "epoch": at.epoch, "step": at.step, "lr": lr, **self.means}
            self.call(on_step, {**record, "seconds": time.perf_counter() - began})
            self.check_requests(self.requests.caught)
            if time.monotonic() - self.saved_at > 60 * training.checkpoint_minutes:
                self.save()

    def call(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call a user's callback in the first process."""
        if self.group.first:
            try:
                callback(*arguments)
            except StopTraining as stop:
                self.stop = stop

    def check_requests(self, caught: int | None = None) -> None:
        """Stop all ranks after the same step, if a signal was caught or a callback has stopped training."""
        agreed = self.group.agree(STOPPED if self.stop else caught)
        if agreed == STOPPED:
            raise self.stop or StopTraining("stopped by the first process")
        if agreed is not None:
            raise Interrupted(agreed)

    def step(self, batch: Batch) -> None:
        """One update of the weights: x_adv -> terms -> loss -> finite? -> update -> log."""
        progress, model, method = self.progress, self.model, self.method
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
            losses, logits = method.terms(self.model_of_terms, x, x_adv, y, step.fold("terms"))
        loss = method.weigh(losses, ramp)
        gradient = self.state.backward(loss, share.weight)
        accuracy = {self.accuracy: (logits.argmax(1) == y).float()}
        values = {"loss": loss, "gradient": gradient, **losses, **accuracy}
        own = torch.stack([value.detach().float().mean() for value in values.values()]).tolist()
        self.means = dict(zip(values, self.group.mean(own, share.weight), strict=True))
        if not all(map(math.isfinite, self.means.values())):
            self.refuse(self.means, batch.ids)
        progress.add(self.means, len(batch.ids))
        self.state.update(self.lr)
        progress.batch += 1
        progress.step += 1
        if progress.batch % PROBE_EVERY == 0 or progress.batch == self.num_batches:
            self.probe(x_adv, rng.fold("probe"), batch.ids, share.weight)

    def probe(self, x_adv: Tensor, rng: Rng, ids: Tensor, weight: float) -> None:
        """Log ||J(x')||_F^2, which jumps in a collapse."""
        with frozen(self.model), torch.no_grad():
            _, own = logits_and_squared_jacobian(self.model, x_adv, rng)
        (jacobian,) = self.group.mean([own.mean().item()], weight)
        if not math.isfinite(jacobian):
            self.refuse({"jacobian": jacobian}, ids)
        at = self.progress
        at.add_probe(jacobian)
        self.log.add({"kind": "probe", "epoch": at.epoch, "step": at.step, "jacobian": jacobian})

    def refuse(self, numbers: Mapping[str, float], ids: Tensor) -> NoReturn:
        """End training before an update by numbers that are not finite."""
        at, written = self.progress, ""
        if self.log.run is not None:
            terms = {name: repr(value) for name, value in numbers.items()}
            where = {"epoch": at.epoch, "batch": at.batch, "step": at.step}
            report = json.dumps({**where, "terms": terms, "examples": ids.tolist()}, indent=2)
            write_atomic(self.log.run.not_finite_path, (report + "\n").encode())
            written = f"; terms and examples are in {self.log.run.not_finite_path}"
        raise NumericError(
            f"not finite in epoch {at.epoch + 1}, step {at.step + 1}, before the next update: "
            f"{dict(numbers)}{written}. Try a smaller learning rate, or look at these examples."
        )

    # --- the end of an epoch ---

    def validate(self) -> Record:
        """Clean and robust accuracy on validation images, at the full eps and always from the same starts.

        Each rank attacks its part of them. One that a signal interrupts says so when the others are done.
        """
        classes = self.validation_images.num_classes
        counts = [0] * 2 * classes
        where = f"in validation after epoch {self.progress.epoch + 1}"
        with suppress(Interrupted), model_errors(where, REMEDY.format("training.validation.batch_size")):
            counts = self.attack_validation_images()
        self.check_requests(self.requests.caught)
        counts = self.group.total(counts)
        sizes = self.validation_images.y.bincount(minlength=classes).tolist()
        return accuracies(sizes, counts[:classes], counts[classes:])

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
        exact = self.training.precision == "float32" or attack.needs_precision
        search = None if exact else in_bfloat16(model, device)
        # No more at a time than a step of training holds.
        size = settings.batch_size or min(256, math.ceil(self.training.batch_size / self.group.size))
        outcome = engine.run(
            attack, model, x, y, self.threat, rng, batch_size=size, search=search, each_step=each_step
        )
        outcome.checked()
        masks = (outcome.clean.cpu(), outcome.robust.cpu())
        right = [images.y[part][mask].bincount(minlength=images.num_classes) for mask in masks]
        return torch.cat(right).tolist()

    def finish_epoch(self, validated: Record) -> Record:
        """Log the epoch and decide how to continue."""
        at, epoch = self.progress, self.progress.epoch
        robust, clean = validated["val_robust"], validated["val_clean"]
        record: Record = {"kind": "epoch", "epoch": epoch, "step": at.step}
        at.batch -= 1  # eps and lr as they were in the last step
        record |= {"eps": self.schedule.ramp(self.now) * self.threat.eps, "lr": self.lr, **at.means()}
        record |= {"jacobian": at.jacobian, **validated}
        collapse = at.collapse.check(epoch, robust, clean, at.jacobian, len(self.validation_images))
        record["best"] = at.plateau.update(epoch, robust, self.schedule)
        record["collapse"] = collapse is not None
        if record["best"]:
            self.state.keep_best()
        if "constant" in record and not (self.log.epochs and "constant" in self.log.epochs[-1]):
            self.display.warn(
                f"WARNING: constant: after epoch {epoch + 1} every validation image gets the same answer, so "
                f"the accuracy is the share of one class, {clean:.1%}. Try a smaller learning rate, let eps "
                "grow more slowly (training.schedule.ramp_epochs), or balance the classes"
            )
        self.log.add(record)
        seconds = self.note_time("epoch done")
        self.display.epoch(record, self.accuracy, seconds)
        if epoch == 0 and self.schedule == Schedule():  # nobody has chosen a number of epochs
            self.display.say(
                f"training ends after {self.schedule.patience} epochs without gain, and after "
                f"{self.schedule.epochs} epochs ({duration(seconds * self.schedule.epochs)}) at the latest; "
                "set another number with epochs= (training.schedule.epochs)"
            )
        at.next_epoch()
        at.ended = at.plateau.finished(epoch, self.schedule)
        if collapse:
            self.handle(collapse)
        return record

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

    # --- checkpoints ---

    @property
    def validated_with(self) -> ConfigDict:
        """What the accuracies of two epochs must have in common to be compared."""
        parts = {"threat": self.threat, "training.validation.attack": self.training.validation.attack}
        return {name: table_of(part, REGISTRIES) for name, part in parts.items()}

    def save(self) -> None:
        if self.log.run is not None:
            about = {key: self.about[key] for key in ("data", "validation", "run")}
            about |= {"model": self.description, "validated_with": self.validated_with}
            # The metrics are on disk before the state that counts on them.
            about |= {"progress": asdict(self.progress), "metrics_bytes": self.log.flush()}
            self.log.run.save_state(self.state.tensors(), about)
        self.saved_at = time.monotonic()

    def export_best(self) -> None:
        if self.log.run is not None:
            epoch = self.progress.plateau.best_epoch
            save_tensors(self.log.run.best_path, self.state.best, {**self.about, "epoch": epoch})

    def restore(self, allow_changes: bool) -> None:
        """Resume from the newest good state in the run's folder; start if there is none."""
        run = self.log.run
        found: State | None = run.load_state(self.display.warn) if run else None
        if found and found[1].get("model"):  # older versions did not describe it
            self.check_model(*found, allow_changes)
        found = self.group.from_first(found)
        if found is None:
            self.log.open(0, 0)
            return
        tensors, saved = found
        for which, what in {"data": "training", "validation": "validation"}.items():
            if saved.get(which) != self.about[which]:
                raise CheckpointError(
                    f"the {what} images are not those that this run was started with: give it the same data, "
                    "and the same seed and number of validation images, by which they are divided"
                )
        self.state.load(tensors)
        try:
            self.progress, written = Progress.of(saved["progress"]), int(saved["metrics_bytes"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"the saved state is of another version of atlas ({type(error).__name__}: {error}): resume "
                "with the version that wrote it, or start the run again"
            ) from error
        self.about = {**self.about, "run": saved.get("run", self.about["run"])}
        before = saved.get("validated_with") or self.validated_with  # older versions did not save it
        self.adjust_to_changes(differences(before, self.validated_with))
        self.log.open(written, self.progress.step)
        if run and self.progress.plateau.best_epoch >= 0 and not run.has_best(self.state.best):
            self.export_best()
            self.display.say(f"{run.best_path} was missing or altered: exported it again from the state")

    def check_model(
        self, tensors: Mapping[str, Tensor], saved: Mapping[str, Any], allow_changes: bool
    ) -> None:
        """Refuse another model than that of the saved state."""
        before, given = saved["model"], self.description
        names = {"layers": "layers", "frozen": "frozen parameters", "weights": "initial weights"}
        if self.state.was_trained_to(tensors):  # the same object again, after a signal or at the end
            del names["weights"]
        known = names.keys() & before.keys() & given.keys()
        different = [name for key, name in names.items() if key in known and given[key] != before[key]]
        if not different:
            self.description = before
        elif not allow_changes:
            assert self.log.run is not None
            raise CheckpointError(
                f"{self.log.run.path} holds the run of another model: its {' and '.join(different)} differ. "
                "Choose another folder; or build the model as it was at the first start (call "
                "torch.manual_seed first); or allow changes (--allow-changes) and keep the saved weights"
            )

    def adjust_to_changes(self, changed: Sequence[str]) -> None:
        """Continue a finished run that has more epochs now, and a run that is validated in another way."""
        at = self.progress
        if changed:
            at.plateau, at.collapse = PlateauTracker(cuts=at.plateau.cuts), CollapseDetector()
        if at.ended is not None and (changed or at.ended != COLLAPSED):
            at.ended = at.plateau.finished(at.epoch - 1, self.schedule)
        if changed and at.ended:
            raise UsageError(
                f"{'; '.join(changed)}: {at.ended}, so no epoch is left to be validated with the new "
                "values. Set a larger training.schedule.epochs"
            )
        if changed:
            self.display.warn(
                f"{'; '.join(changed)}: earlier accuracies cannot be compared with later ones, so the best "
                "epoch, the plateau tracker and the collapse detector are reset"
            )
