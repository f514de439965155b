"""The training loop: `fit` any model on any images with any method, under the guided schedule.

An epoch: batches -> x_adv -> terms -> loss -> step; then validation -> schedule and watch -> state.
All randomness is a function of (seed, example, epoch), so a run that was killed goes on bit for bit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from atlas.attacks import frozen, lanes
from atlas.data import AUGMENTS, Batch, Images, as_images, batches, num_batches, split
from atlas.errors import Interrupted, NumericError
from atlas.methods import Method
from atlas.objectives import probe_squared_jacobian
from atlas.rng import Rng
from atlas.threat import Threat
from atlas.training.checkpoint import save_tensors, write_atomic
from atlas.training.display import Display
from atlas.training.folder import RunFolder
from atlas.training.log import Log, Record
from atlas.training.schedule import Guide
from atlas.training.settings import Training
from atlas.training.signals import Requests, caught_signals
from atlas.training.watch import Watch

PROBE_EVERY = 50
"""Steps between two looks at the Jacobian: two passes each, well under 1% of the work."""
ROLLBACKS = 2
ALPHA_FACTOR = 4.0
"""A rollback raises alpha by this, and cuts the learning rate once."""


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
    folder: Path | None


@dataclass
class Progress:
    """Where a run is, and what it has decided: the part of the state that is not tensors."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    rollbacks: int = 0
    ended: str | None = None
    seen: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    """Sums over the `seen` images of this epoch; probes under "jacobian", counted by "probes"."""
    guide: Guide = field(default_factory=Guide)
    watch: Watch = field(default_factory=Watch)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Progress:
        rest = {k: v for k, v in table.items() if k not in ("guide", "watch")}
        return cls(**rest, guide=Guide(**table["guide"]), watch=Watch(**table["watch"]))

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value


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
    name: str = "training",
    about: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Result:
    """Train `model` in place and return it with the weights of its best epoch.

    `train_set` and `validation_set`: Images, an (x, y) pair, a data set or a DataLoader. Without a
    validation set, `training.validation.size` of the training images are set apart. With a folder, all is
    written there, and a run that is found there goes on where it was; `about` goes into its weights.
    """
    images = as_images(train_set)
    if validation_set is None:
        images, held_out = split(images, training.validation.size, training.seed)
    else:
        held_out = as_images(validation_set, images.num_classes)
    model.to(device or next(model.parameters()).device)
    place = RunFolder(Path(folder)) if folder is not None else None
    run = _Run(model, images, held_out, method, threat, training, place, about or {})
    with place.locked() if place else nullcontext(), caught_signals() as run.requests:
        run.restore()
        with run.log, Display(name, training.schedule.epochs, run.at.epoch, shown=progress) as run.display:
            return run.to_the_end()


class _Run:
    display: Display
    requests: Requests

    def __init__(
        self,
        model: nn.Module,
        images: Images,
        held_out: Images,
        method: Method,
        threat: Threat,
        training: Training,
        folder: RunFolder | None,
        about: Mapping[str, Any],
    ) -> None:
        self.model, self.images, self.held_out = model, images, held_out
        self.base_method, self.threat, self.training = method, threat, training
        self.folder, self.about = folder, about
        self.schedule = training.schedule
        self.device = next(model.parameters()).device
        self.optimizer = training.optimizer.build(model.parameters())
        average = get_ema_multi_avg_fn(training.ema)  # type: ignore[no-untyped-call]
        self.ema = AveragedModel(model, multi_avg_fn=average, use_buffers=True) if training.ema else None
        self.num_batches = num_batches(len(images), training.batch_size)
        self.best: dict[str, Tensor] = {}
        self.log = Log(folder)
        self.at = Progress()
        self.saved_at = time.monotonic()

    # --- the course of a run ---

    def to_the_end(self) -> Result:
        self.log.time(event="start", epoch=self.at.epoch, batch=self.at.batch, torch=torch.__version__)
        while self.at.ended is None:
            began = time.monotonic()
            try:
                self.train_epoch()
                trained = time.monotonic()
                clean, robust = self.validate()
            except Interrupted:
                self.save()
                raise
            record = self.close_epoch(clean, robust)
            self.save()
            seconds = time.monotonic() - began
            self.log.time(event="epoch", epoch=record["epoch"], train=trained - began, all=seconds)
            self.display.epoch(record, seconds)
        self.export("last", self.evaluated.state_dict(), self.at.epoch - 1)
        self.model.load_state_dict(self.best)
        guide, where = self.at.guide, self.folder.path if self.folder else None
        return Result(self.model, guide.best_epoch, guide.best, self.log.epochs, self.at.ended, where)

    @property
    def evaluated(self) -> nn.Module:
        """The model that is validated and kept: the average of the weights where there is one."""
        return self.ema.module if self.ema is not None else self.model

    @property
    def method(self) -> Method:
        """The method, with the larger alpha that each rollback brings."""
        alpha = getattr(self.base_method, "alpha", 0.0)
        if not (self.at.rollbacks and alpha):
            return self.base_method
        return replace(self.base_method, alpha=alpha * ALPHA_FACTOR**self.at.rollbacks)  # type: ignore[type-var]

    def train_epoch(self) -> None:
        epochs = f"epoch {self.at.epoch + 1}"
        self.display.begin(epochs, self.num_batches, self.at.batch)
        todo = batches(
            self.images,
            self.training.batch_size,
            seed=self.training.seed,
            epoch=self.at.epoch,
            augment=AUGMENTS[self.training.augment],
            device=self.device,
            first=self.at.batch,
        )
        for batch in todo:
            self.step(batch)
            self.display.advance_to(self.at.batch, self.at.epoch + self.at.batch / self.num_batches)
            self.requests.check()
            if time.monotonic() - self.saved_at > 60 * self.training.checkpoint_minutes:
                self.save()

    def step(self, batch: Batch) -> None:
        """One update of the weights."""
        ids, x, y = batch
        now = self.at.epoch + self.at.batch / self.num_batches
        ramp = self.schedule.ramp(now)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr(now)
        rng = Rng.lanes(self.training.seed, ids).fold("train", self.at.epoch)
        threat = self.threat.at(ramp * self.threat.eps)
        x_adv = self.method.craft(self.model, x, y, threat, rng.fold("attack"), self.training.crafting_mode)
        self.model.train()
        losses, logits = self.method.terms(self.model, x, x_adv, y, rng.fold("terms"))
        loss = self.method.weigh(losses, ramp)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.take_in(loss, losses, logits, ids, y)
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        if self.at.step % PROBE_EVERY == 0:
            self.probe(x_adv, rng.fold("probe"))
        self.at.batch += 1
        self.at.step += 1

    def lr(self, now: float) -> float:
        return self.training.optimizer.lr * self.schedule.lr_factor(now, self.at.guide.cuts)

    def take_in(
        self, loss: Tensor, losses: Mapping[str, Tensor], logits: Tensor, ids: Tensor, y: Tensor
    ) -> None:
        """Add the batch to the epoch's sums; refuse what is not finite, before any update."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        values = {"loss": loss, "gradient": torch.nn.utils.get_total_norm(gradients)}
        values |= {name: term.mean() for name, term in losses.items()}
        values["train_adv"] = (logits.argmax(1) == y).float().mean()
        numbers = dict(
            zip(values, torch.stack([v.detach().float() for v in values.values()]).tolist(), strict=True)
        )
        if not all(map(torch.isfinite, map(torch.tensor, numbers.values()))):
            self.refuse(numbers, ids)
        self.at.seen += len(y)
        self.at.add(**{name: number * len(y) for name, number in numbers.items()})

    def refuse(self, numbers: Mapping[str, float], ids: Tensor) -> None:
        where = {"epoch": self.at.epoch, "batch": self.at.batch, "step": self.at.step}
        report = where | {"terms": {k: repr(v) for k, v in numbers.items()}, "examples": ids.tolist()}
        said = ""
        if self.folder is not None:
            path = self.folder.path / "not-finite.json"
            write_atomic(path, (json.dumps(report, indent=2) + "\n").encode())
            said = f"; terms and examples are in {path}"
        raise NumericError(
            f"not finite in epoch {self.at.epoch + 1}, batch {self.at.batch + 1}, before the update: "
            f"{dict(numbers)}{said}. Try a smaller learning rate, or look at these examples."
        )

    def probe(self, x_adv: Tensor, rng: Rng) -> None:
        """Write down ||J(x')||_F^2, whose jump tells of a collapse."""
        with frozen(self.model):
            jacobian = probe_squared_jacobian(self.model, x_adv, rng).mean().item()
        self.at.add(jacobian=jacobian, probes=1)
        self.log.add({"kind": "probe", "epoch": self.at.epoch, "step": self.at.step, "jacobian": jacobian})

    # --- the end of an epoch ---

    def validate(self) -> tuple[float, float]:
        """Clean and robust accuracy on the validation images: at the full eps, always from the same starts."""
        x, y = self.held_out.pixels(slice(None), self.device), self.held_out.y.to(self.device)
        rng = Rng.lanes(self.training.seed, self.held_out.ids.to(self.device)).fold("validation")
        self.display.begin("validation", len(y))

        def each_step(settled: int) -> None:
            self.display.advance_to(settled)
            self.requests.check()

        attack = self.training.validation.attack
        outcome = lanes.run(attack, self.evaluated, x, y, self.threat, rng, each_step=each_step)
        return int(outcome.clean.sum()) / len(y), int(outcome.robust.sum()) / len(y)

    def close_epoch(self, clean: float, robust: float) -> Record:
        """Write the epoch down and decide how to go on."""
        at, epoch = self.at, self.at.epoch
        record = self.summary(clean, robust)
        collapse = at.watch.look(epoch, robust, record["jacobian"])
        record["best"] = at.guide.update(epoch, robust, self.schedule)
        record["collapse"] = collapse is not None
        self.log.add(record)
        at.epoch, at.batch, at.seen, at.sums = epoch + 1, 0, 0, {}
        at.ended = at.guide.finished(epoch, self.schedule)
        if record["best"]:
            self.best = {k: v.detach().clone() for k, v in self.evaluated.state_dict().items()}
            self.export("best", self.best, epoch)
        if collapse:
            self.handle(collapse)
        return record

    def summary(self, clean: float, robust: float) -> Record:
        sums = dict(self.at.sums)
        probes = sums.pop("probes", 0)
        # An epoch shorter than the distance between two probes keeps the last known value.
        known = self.log.epochs[-1]["jacobian"] if self.log.epochs else 0.0
        jacobian = sums.pop("jacobian") / probes if probes else known
        means = {name: total / self.at.seen for name, total in sums.items()}
        now = self.at.epoch + (self.num_batches - 1) / self.num_batches
        eps = self.schedule.ramp(now) * self.threat.eps
        record = {
            "kind": "epoch",
            "epoch": self.at.epoch,
            "step": self.at.step,
            "eps": eps,
            "lr": self.lr(now),
        }
        return record | means | {"jacobian": jacobian, "val_clean": clean, "val_robust": robust}

    def handle(self, collapse: str) -> None:
        """Announce a collapse, then do what `on_collapse` says."""
        self.display.say(collapse, style="bold red")
        action = self.training.on_collapse
        if action == "rollback" and self.at.rollbacks < ROLLBACKS and self.at.ended is None:
            self.roll_back()
        elif action != "continue":
            self.at.ended = self.at.ended or "collapse"

    def roll_back(self) -> None:
        """The best weights again, a cut learning rate, a larger alpha, and no memory of the way here."""
        self.at.rollbacks += 1
        self.at.guide.cut()
        self.at.guide.since_best = 0
        self.at.watch.collapsed = False
        self.model.load_state_dict(self.best)
        if self.ema is not None:
            self.ema.module.load_state_dict(self.best)
        self.optimizer.state.clear()
        self.display.say(
            f"rolled back to epoch {self.at.guide.best_epoch + 1} with {self.method}", style="bold"
        )

    # --- saving and restoring ---

    def export(self, which: str, weights: Mapping[str, Tensor], epoch: int) -> None:
        if self.folder is not None:
            path = self.folder.best if which == "best" else self.folder.last
            save_tensors(path, weights, {**self.about, "epoch": epoch})

    def save(self) -> None:
        if self.folder is None:
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        if self.ema is not None:
            tensors |= {f"ema.{k}": v for k, v in self.ema.state_dict().items()}
        for number, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{k}": v for k, v in slots.items() if isinstance(v, Tensor)}
        tensors["torch_rng"] = torch.get_rng_state()
        self.folder.save_state(tensors, {"progress": asdict(self.at), "metrics_bytes": self.log.size()})
        self.saved_at = time.monotonic()

    def restore(self) -> None:
        """Go on from the newest good state in the folder; without one, start."""
        found = self.folder.load_state() if self.folder else None
        if found is None:
            self.log.open(0, 0)
            return
        tensors, about, complaints = found
        for complaint in complaints:
            print(f"{complaint}; going on from the state before")
        self.model.load_state_dict(_under(tensors, "model"))
        self.best = {k: v.to(self.device) for k, v in _under(tensors, "best").items()}
        if self.ema is not None:
            self.ema.load_state_dict(_under(tensors, "ema"))
        self.restore_optimizer(_under(tensors, "optimizer"))
        torch.set_rng_state(tensors["torch_rng"])
        self.at = Progress.of(about["progress"])
        self.log.open(about["metrics_bytes"], self.at.step)

    def restore_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        slots: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            number, name = key.split(".", 1)
            slots.setdefault(int(number), {})[name] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": slots})


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with ``prefix.``, without it."""
    return {k.removeprefix(prefix + "."): v for k, v in tensors.items() if k.startswith(prefix + ".")}
