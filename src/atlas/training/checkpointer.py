"""The states and weights that a run keeps in its folder, its result, and which model it was started with."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atlas.checkpoint import digest, save_tensors
from atlas.config import ConfigDict
from atlas.distributed.process_group import State
from atlas.errors import CheckpointError, Interrupted, UsageError
from atlas.runs import Record, Run
from atlas.training.display import imbalance_note
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
        best = f"best epoch {self.best_epoch + 1} of {len(self.epochs)}"
        return f"{self.ended}: {best}, validation robust accuracy {self.best_robust:.2%}{self.imbalance_note}"

    @property
    def imbalance_note(self) -> str:
        """If classes are imbalanced, what puts the accuracy into perspective, else nothing."""
        return imbalance_note(_record_of(self.best_epoch, self.epochs))


class Checkpointer:
    """Runs the trainer epoch by epoch and keeps its state and weights in the run's folder."""

    def __init__(
        self, trainer: Trainer, run: Run | None, about: Mapping[str, Any], model: ConfigDict
    ) -> None:
        self.trainer, self.run, self.about, self.model = trainer, run, dict(about), model
        self.saved_at = time.monotonic()

    def train(
        self, on_step: Callable[[Record], None], on_epoch: Callable[[Sequence[Record]], None]
    ) -> Result:
        """Train to the end, or until a callback stops it."""
        trainer = self.trainer
        try:
            while trainer.progress.ended is None:
                self.train_epoch(on_step)
                trainer.call(on_epoch, trainer.log.epochs)
                trainer.check_requests()
            ended = trainer.progress.ended
            self.export("last")
        except StopTraining as stop:
            ended = str(stop)
        state, plateau = trainer.state, trainer.progress.plateau
        if state.best:
            state.model.load_state_dict(state.best)
        if _record_of(plateau.best_epoch, trainer.log.epochs).get("constant"):
            trainer.display.warn(
                "WARNING: constant: the weights of the best epoch give every validation image the same "
                "answer, so their accuracy is the share of one class"
            )
        return Result(
            model=state.model.eval(),
            best_epoch=plateau.best_epoch,
            best_robust=plateau.best,
            epochs=trainer.log.epochs,
            ended=ended,
            seconds=trainer.log.seconds,
            folder=self.run.path if self.run else None,
        )

    def train_epoch(self, on_step: Callable[[Record], None]) -> None:
        trainer = self.trainer
        try:
            trainer.train_epoch(on_step, self.save_if_due)
            record = trainer.close_epoch(trainer.validate())
        except (Interrupted, StopTraining):
            trainer.note_time("interrupted")
            self.save()
            trainer.group.wait()  # the launcher may end all ranks as soon as one has exited
            raise
        if record["best"]:
            self.export("best")
        self.save()

    def export(self, which: str) -> None:
        """Write the best or the last evaluated weights to a file."""
        if self.run is None:
            return
        state, progress = self.trainer.state, self.trainer.progress
        if which == "last":
            path, epoch, weights = self.run.last_path, progress.epoch - 1, state.evaluated.state_dict()
        else:
            path, epoch, weights = self.run.best_path, progress.plateau.best_epoch, state.best
        save_tensors(path, weights, {**self.about, "epoch": epoch})

    def save_if_due(self) -> None:
        if time.monotonic() - self.saved_at > 60 * self.trainer.training.checkpoint_minutes:
            self.save()

    def save(self) -> None:
        if self.run is not None:
            about = {which: self.about[which] for which in ("data", "validation", "run")}
            about |= {"model": self.model, **self.trainer.table()}
            self.run.save_state(self.trainer.state.tensors(), about)
        self.saved_at = time.monotonic()

    def restore(self, allow_changes: bool) -> None:
        """Resume from the newest good state in the folder; start if there is none."""
        found = self.trainer.group.from_first(self.newest(allow_changes))
        if found is None:
            self.trainer.log.open(0, 0)
            return
        tensors, about = found
        for which, what in {"data": "training", "validation": "validation"}.items():
            if about.get(which) != self.about[which]:
                raise CheckpointError(
                    f"the {what} images are not those that this run was started with: give it the same data, "
                    "and the same seed and number of validation images, by which they are divided"
                )
        self.trainer.state.load(tensors)
        try:
            self.trainer.resume(about)
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"the saved state is of another version of atlas ({type(error).__name__}: {error}): resume "
                "with the version that wrote it, or start the run again"
            ) from error
        self.about["run"] = about.get("run", self.about["run"])
        if self.run is not None and self.trainer.progress.plateau.best_epoch >= 0:
            problem = self.run.problem_with_best(self.trainer.state.best)
            if problem is not None:
                self.export("best")
                self.trainer.display.say(f"{problem}; exported it again from the saved state")

    def newest(self, allow_changes: bool) -> State | None:
        """The newest good state in the folder, with a warning about damaged ones."""
        found = self.run.load_state() if self.run else None
        if found is None:
            return None
        assert self.run is not None
        tensors, about, complaints = found
        for complaint in complaints:
            self.trainer.display.warn(f"{complaint}; resuming from the state before it")
        self.check_model(self.run.path, tensors, about.get("model"), allow_changes)
        return tensors, {"validated_with": _validated_with(self.run), **about}

    def check_model(
        self, path: Path, tensors: Mapping[str, Tensor], before: ConfigDict | None, allow_changes: bool
    ) -> None:
        """Refuse another model than the run's. Older versions did not describe it."""
        if before is None:
            return
        given = self.model
        if self.trainer.state.trained_to(tensors):  # the same object again, after a signal or at the end
            given = {key: value for key, value in given.items() if key in ("layers", "frozen")}
        reason = difference(before, given)
        if reason is None:
            self.model = before
        elif not allow_changes:
            raise CheckpointError(
                f"{path} holds the run of another model: {reason}. Choose another folder; or "
                "build the model as it was at the first start (call torch.manual_seed first); or allow "
                "changes (--allow-changes) to continue the run with its saved weights, not the given ones"
            )


def _validated_with(run: Run) -> ConfigDict | None:
    """The threat and the validation attack of the configuration: states of older versions do not say."""
    config = run.config if run.config_path.exists() else {}
    try:
        attack = config["training"]["validation"]["attack"]
        return {"threat": config["threat"], "training.validation.attack": attack}
    except (KeyError, TypeError):  # a configuration that the caller of `fit` made up
        return None


def _record_of(epoch: int, epochs: Sequence[Record]) -> Record:
    """The record of an epoch; nothing on a rank that was started after it."""
    return next((record for record in epochs if record["epoch"] == epoch), {})


TOLERANCE = 0.02
"""Relative to the largest logit: devices and TF32 differ by less, another activation function by more."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def description(model: nn.Module, logits: Tensor, *, built_from_config: bool) -> ConfigDict:
    """What is known of a model before it is trained, as a plain table.

    `logits` are its outputs for the same image twice. If a configuration says how to build the model, its
    initial weights follow from that, up to rounding on another machine, and only its structure is described.
    """
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    structure = {"layers": _ADDRESS.sub("", str(model)), "frozen": frozen}
    if built_from_config:
        return structure
    random = not _alike(logits[0], logits[1])
    answers = {} if random else {"answers": logits[0].tolist()}
    return structure | answers | {"weights": digest(model.state_dict())}


def difference(run: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """Why the given model is not the one that the run started with, both as described; None if it is."""
    if run["layers"] != given["layers"]:
        pairs = zip_longest(run["layers"].splitlines(), given["layers"].splitlines(), fillvalue="nothing")
        before, now = next(pair for pair in pairs if pair[0] != pair[1])
        return f"its layers differ: {before.strip()} in the run, {now.strip()} in the given model"
    if run["frozen"] != given["frozen"]:
        changed = sorted({*run["frozen"]} ^ {*given["frozen"]})
        return f"other parameters are frozen: {', '.join(changed[:3])}{', ...' if len(changed) > 3 else ''}"
    if "weights" not in run or "weights" not in given:
        return None
    if run["weights"] != given["weights"]:
        return "its initial weights differ from those that the run started with"
    if "answers" in run and "answers" in given:
        before, now = torch.tensor(run["answers"], device="cpu"), torch.tensor(given["answers"], device="cpu")
        if not _alike(before, now):
            return "it gives other logits with the same weights, so its forward pass differs"
    return None


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= TOLERANCE * one.abs().max())
