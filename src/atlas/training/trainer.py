"""One epoch after the other: the steps, the validation, and what is decided after it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from atlas.attacks import engine, frozen
from atlas.attacks.gradients import NotFinite
from atlas.config import ConfigDict, differences, table_of
from atlas.data import AUGMENTS, Batch, Images, batches, num_batches
from atlas.distributed.process_group import ProcessGroup
from atlas.errors import Interrupted, NumericError, UsageError, model_errors
from atlas.files import write_atomic
from atlas.methods import Method
from atlas.objectives import probe_squared_jacobian
from atlas.rng import Rng
from atlas.signals import Requests
from atlas.threat import Threat
from atlas.training.display import Display
from atlas.training.log import Log, Record
from atlas.training.precision import lowered, lowered_model, searched_model
from atlas.training.settings import REGISTRIES, Training
from atlas.training.train_state import Progress, TrainState
from atlas.training.validated import Validated

PROBE_EVERY = 50
"""Batches between two looks at the Jacobian: two passes each, about 1% of the work. The last batch of an
epoch is always looked at."""
VALIDATION_BATCH = 256
"""Validation images attacked at a time, at most, unless `training.validation.batch_size` says otherwise."""
COLLAPSED = "collapse"
"""Why training ended, where `on_collapse` ended it."""
ROLLBACKS = 2
ALPHA_FACTOR = 4.0
"""A rollback raises alpha by this, and cuts the learning rate once."""


class Trainer:
    """Trains by epochs. Knows nothing of files but the log."""

    def __init__(
        self,
        model: nn.Module,
        images: Images,
        held_out: Images,
        method: Method,
        threat: Threat,
        training: Training,
        log: Log,
        display: Display,
        requests: Requests,
        ranks: ProcessGroup = ProcessGroup(),
    ) -> None:
        self.images, self.held_out = images, held_out
        self.base_method, self.threat, self.training = method, threat, training
        self.log, self.display, self.requests = log, display, requests
        self.ranks = ranks
        self.schedule = training.schedule
        self.learner = TrainState(model, method, training, ranks)
        self.lowered = partial(lowered, training.precision, device=self.learner.device)
        self.answer = lowered_model(training.precision, self.learner.model, self.learner.device)
        self.still = [module for module in model.modules() if model.training and not module.training]
        """Parts that somebody has put into eval mode, such as a BatchNorm whose statistics are to stay."""
        self.num_batches = num_batches(len(images), training.batch_size)
        self.at = Progress()
        self.dead = False
        """Whether it was said that the model answers alike whatever it sees."""
        self.constant = False
        """Whether every validation image got the same answer after the last epoch."""
        self.began = time.monotonic()

    @classmethod
    def of_batch(
        cls,
        model: nn.Module,
        batch: Batch,
        classes: int,
        method: Method,
        threat: Threat,
        training: Training,
        ranks: ProcessGroup = ProcessGroup(),
    ) -> Trainer:
        """A trainer on this batch alone, without files or display, whose steps are to be measured."""
        images = Images(batch.x.cpu(), batch.y.cpu(), classes)
        quiet = Display("", 1, shown=False)
        return cls(model, images, images, method, threat, training, Log(None), quiet, Requests(), ranks)

    def state(self) -> dict[str, Any]:
        """All but the tensors, as a plain table; the metrics are on disk first."""
        return {
            "progress": asdict(self.at),
            "metrics_bytes": self.log.flush(),
            "validated_with": self.validated_with,
        }

    @property
    def validated_with(self) -> ConfigDict:
        """What the accuracies of two epochs must have in common to be compared."""
        parts = {"threat": self.threat, "training.validation.attack": self.training.validation.attack}
        return {name: table_of(part, REGISTRIES) for name, part in parts.items()}

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        self.at = Progress.of(state["progress"])
        changed = differences(state.get("validated_with") or self.validated_with, self.validated_with)
        if changed:
            self.at.forget_validation()
        if self.at.ended is not None and (changed or self.at.ended != COLLAPSED):
            # The schedule may be a longer one now.
            self.at.ended = self.at.guide.finished(self.at.epoch - 1, self.schedule)
        if changed and self.at.ended:
            raise UsageError(
                f"{'; '.join(changed)}: {self.at.ended}, so no epoch is left to be validated with the new "
                "values. Set a larger training.schedule.epochs"
            )
        self.log.open(state["metrics_bytes"], self.at.step)
        if changed:
            self.display.warn(
                f"{'; '.join(changed)}: earlier accuracies cannot be compared with later ones, so the best "
                "epoch, the plateau tracker and the collapse detector start anew"
            )

    @property
    def method(self) -> Method:
        """The method, with the larger alpha that each rollback brings."""
        alpha = getattr(self.base_method, "alpha", 0.0)
        if not (self.at.rollbacks and alpha):
            return self.base_method
        return replace(self.base_method, alpha=alpha * ALPHA_FACTOR**self.at.rollbacks)  # type: ignore[type-var]

    @property
    def now(self) -> float:
        """Epochs done so far, with the part of the one under way."""
        return self.at.epoch + self.at.batch / self.num_batches

    @property
    def lr(self) -> float:
        return self.training.optimizer.lr * self.schedule.lr_factor(self.now, self.at.guide.cuts)

    # --- an epoch of steps ---

    def train_epoch(self, after_step: Callable[[], None] = lambda: None) -> None:
        """The rest of the epoch under way. A signal that has come in ends it between two steps."""
        self.began = time.monotonic()
        self.log.time(event="epoch", epoch=self.at.epoch, batch=self.at.batch, processes=self.ranks.size)
        self.display.begin(f"epoch {self.at.epoch + 1}", self.num_batches, self.at.batch)
        todo = batches(
            self.images,
            self.training.batch_size,
            seed=self.training.seed,
            epoch=self.at.epoch,
            augment=AUGMENTS[self.training.augment],
            device=self.learner.device,
            first=self.at.batch,
        )
        for batch in todo:
            where = f"in epoch {self.at.epoch + 1}, step {self.at.step + 1}"
            with model_errors(where, self.remedy("training.batch_size")):
                self.step(batch)
            self.display.advance_to(self.at.batch, epochs=self.now)
            self.check_requests()
            after_step()

    def remedy(self, setting: str) -> str:
        """What to do when memory has run out."""
        smaller = f"Free memory or set a smaller {setting}"
        if self.log.folder is None:
            return f"{smaller}, then start again"
        return f"{smaller} (with --allow-changes), then resume: what was saved before is intact"

    def check_requests(self) -> None:
        """Leave where any rank has been asked to: all do, after the same step."""
        signal = self.ranks.agree(self.requests.caught)
        if signal is not None:
            raise Interrupted(signal)

    def step(self, batch: Batch) -> None:
        """One update of the weights."""
        share = self.ranks.share(len(batch.ids))
        ids, x, y = (column[share.part] for column in batch)
        x = self.learner.arranged(x)
        self.ranks.reseed(self.training.seed, self.at.step)
        model, method, ramp = self.learner.model, self.method, self.schedule.ramp(self.now)
        rng = Rng.lanes(self.training.seed, ids).fold("train", self.at.epoch)
        threat = self.threat.at(ramp * self.threat.eps)
        try:
            with self.lowered("craft"):
                x_adv = method.craft(model, x, y, threat, rng.fold("attack"), self.training.crafting_mode)
        except NotFinite as error:
            self.refuse({"attack": math.nan}, ids[error.lanes])
        model.train()
        for module in self.still:
            module.eval()
        with self.lowered("terms"):
            losses, logits = method.terms(self.answer, x, x_adv, y, rng.fold("terms"))
        loss = method.weigh(losses, ramp)
        gradient = self.learner.backward(loss, share.weight)
        accuracy = {self.accuracy: (logits.argmax(1) == y).float()}
        self.take_in({"loss": loss, "gradient": gradient, **losses, **accuracy}, batch.ids, share.weight)
        self.learner.update(self.lr)
        self.at.batch += 1
        self.at.step += 1
        if self.at.batch % PROBE_EVERY == 0 or self.at.batch == self.num_batches:
            self.probe(x_adv, rng.fold("probe"), batch.ids, share.weight)

    @property
    def accuracy(self) -> str:
        """The name of the accuracy on the images that are trained on."""
        return "train_clean" if self.base_method.attack is None else "train_adv"

    def take_in(self, values: Mapping[str, Tensor], ids: Tensor, weight: float) -> None:
        """Add the batch to the epoch's sums; refuse what is not finite, before any update.

        `values` are of this rank's share of the batch `ids`, and have this weight among the ranks'.
        """
        mine = torch.stack([value.detach().float().mean() for value in values.values()]).tolist()
        means = self.ranks.mean(mine, weight)
        numbers = dict(zip(values, means, strict=True))
        if not all(map(math.isfinite, means)):
            self.refuse(numbers, ids)
        self.at.add(numbers, len(ids))

    def refuse(self, numbers: Mapping[str, float], ids: Tensor) -> NoReturn:
        where = {"epoch": self.at.epoch, "batch": self.at.batch, "step": self.at.step}
        report = where | {"terms": {k: repr(v) for k, v in numbers.items()}, "examples": ids.tolist()}
        noted = ""
        if self.log.folder is not None:
            path = self.log.folder.not_finite
            write_atomic(path, (json.dumps(report, indent=2) + "\n").encode())
            noted = f"; terms and examples are in {path}"
        raise NumericError(
            f"not finite in epoch {self.at.epoch + 1}, step {self.at.step + 1}, before the next update: "
            f"{dict(numbers)}{noted}. Try a smaller learning rate, or look at these examples."
        )

    def probe(self, x_adv: Tensor, rng: Rng, ids: Tensor, weight: float) -> None:
        """Write down ||J(x')||_F^2, whose jump tells of a collapse."""
        with frozen(self.learner.model):
            mine = probe_squared_jacobian(self.learner.model, x_adv, rng).mean().item()
        (jacobian,) = self.ranks.mean([mine], weight)
        if not math.isfinite(jacobian):
            self.refuse({"jacobian": jacobian}, ids)
        self.at.probe(jacobian)
        self.log.add({"kind": "probe", "epoch": self.at.epoch, "step": self.at.step, "jacobian": jacobian})

    # --- the end of an epoch ---

    def validate(self) -> Validated:
        """Clean and robust accuracy on validation images, at the full eps and always from the same starts.

        Each rank attacks its part of them. One that a signal breaks off says so when the others are done.
        """
        classes = self.held_out.num_classes
        counts = [0] * 2 * classes
        where, remedy = f"in validation after epoch {self.at.epoch + 1}", "training.validation.batch_size"
        with suppress(Interrupted), model_errors(where, self.remedy(remedy)):
            counts = self.attack_validation_images()
        self.check_requests()
        counts = list(self.ranks.total(counts))
        sizes = self.held_out.y.bincount(minlength=classes).tolist()
        return Validated.of(sizes, counts[:classes], counts[classes:])

    def attack_validation_images(self) -> list[int]:
        """How many of this rank's are classified right in each class, clean and then under attack."""
        device, part = self.learner.device, slice(self.ranks.rank, None, self.ranks.size)
        x, y = self.held_out.pixels(part, device), self.held_out.y[part].to(device)
        rng = Rng.lanes(self.training.seed, self.held_out.ids[part].to(device)).fold("validation")
        self.display.begin("validation", len(y))

        def each_step(settled: int) -> None:
            self.display.advance_to(settled)
            self.requests.check()

        attack, model = self.training.validation.attack, self.learner.evaluated
        search = None if attack.needs_precision else searched_model(self.training.precision, model, device)
        batch_size = self.training.validation.batch_size
        if batch_size is None:  # no more than a step of training holds
            batch_size = min(VALIDATION_BATCH, math.ceil(self.training.batch_size / self.ranks.size))
        outcome = engine.run(
            attack, model, x, y, self.threat, rng, batch_size=batch_size, search=search, each_step=each_step
        )
        outcome.checked()
        classes = self.held_out.num_classes
        masks = (outcome.clean.cpu(), outcome.robust.cpu())
        right = [self.held_out.y[part][mask].bincount(minlength=classes) for mask in masks]
        return torch.cat(right).tolist()

    def close_epoch(self, validated: Validated) -> Record:
        """Write the epoch down and decide how to go on."""
        at, epoch, clean, robust = self.at, self.at.epoch, validated.clean, validated.robust
        record: Record = {"kind": "epoch", "epoch": epoch, "step": at.step}
        at.batch -= 1  # eps and lr as they were in the last step
        record |= {"eps": self.schedule.ramp(self.now) * self.threat.eps, "lr": self.lr, **at.means()}
        record |= {"jacobian": at.jacobian, "val_clean": clean, "val_robust": robust}
        if validated.imbalanced:
            record |= {"val_majority": validated.majority, "val_balanced": validated.balanced}
        if validated.one_answer is not None:
            record["constant"] = True
        collapse = at.watch.look(epoch, robust, clean, at.jacobian, len(self.held_out))
        record["best"] = at.guide.update(epoch, robust, self.schedule)
        record["collapse"] = collapse is not None
        if record["best"]:
            self.learner.keep_best()
        self.log.add(record)
        self.display.epoch(record, self.accuracy, self.note_time("epoch done"))
        self.warn_of_one_answer(validated)
        if record["jacobian"] == 0 and not self.dead:
            self.dead = True
            self.display.warn(
                "||J||^2 is 0: the model answers alike whatever it sees, and is not likely to learn again. "
                "Try a smaller learning rate, or let eps grow more slowly (training.schedule.ramp_epochs)"
            )
        at.next_epoch()
        at.ended = at.guide.finished(epoch, self.schedule)
        if collapse:
            self.handle(collapse)
        return record

    def warn_of_one_answer(self, validated: Validated) -> None:
        """Once for each time that it begins; a model can recover."""
        label, before = validated.one_answer, self.constant
        self.constant = label is not None
        if label is None or before:
            return
        names = self.held_out.class_names
        name = f"{label} ({names[label]})" if names else str(label)
        self.display.warn(
            f"WARNING: constant: after epoch {self.at.epoch + 1} every validation image gets the same "
            f"answer, class {name}: the accuracy is the share of that class, {validated.clean:.1%}. Try a "
            "smaller learning rate, let eps grow more slowly (training.schedule.ramp_epochs), or balance the "
            "classes"
        )

    def note_time(self, event: str) -> float:
        """Write down the seconds since the epoch, or its rest, was begun."""
        seconds = time.monotonic() - self.began
        self.log.time(event=event, epoch=self.at.epoch, seconds=round(seconds, 3))
        return seconds

    def handle(self, collapse: str) -> None:
        """Announce a collapse, then do what `on_collapse` says."""
        self.display.warn(collapse)
        action = self.training.on_collapse
        if action == "rollback" and self.at.rollbacks < ROLLBACKS and self.at.ended is None:
            self.roll_back()
        elif action != "continue":
            self.at.ended = self.at.ended or COLLAPSED

    def roll_back(self) -> None:
        """The best weights again, with a cut learning rate and a larger alpha."""
        self.at.rollbacks += 1
        self.at.guide.cut()
        self.at.guide.since_best = 0
        self.at.watch.collapsed = False
        self.learner.return_to_best()
        self.display.warn(
            f"rolled back to epoch {self.at.guide.best_epoch + 1}; going on with alpha "
            f"{getattr(self.method, 'alpha', 0.0):.2g} and learning rate {self.lr:.2g}"
        )
