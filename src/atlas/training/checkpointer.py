"""What stays of a run: its states and weights in a folder, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from atlas.config import ConfigDict
from atlas.distributed.process_group import State
from atlas.errors import CheckpointError, Interrupted, UsageError
from atlas.runs import RunFolder
from atlas.training.display import beside
from atlas.training.identity import difference
from atlas.training.log import Record
from atlas.training.trainer import Trainer


@dataclass(frozen=True, repr=False)
class Result:
    """What `fit` gives back. The model has the weights of the best epoch."""

    model: nn.Module
    best_epoch: int
    """From 0, as in `epochs`; what is shown counts from 1."""
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
        return f"{self.ended}: {best}, validation robust accuracy {self.best_robust:.2%}{self.beside}"

    @property
    def beside(self) -> str:
        """What belongs beside its accuracy where classes are imbalanced, else nothing."""
        return beside(_record_of(self.best_epoch, self.epochs))


class Checkpointer:
    """Runs the trainer epoch by epoch and keeps its state and weights in the folder."""

    def __init__(
        self, trainer: Trainer, folder: RunFolder | None, about: Mapping[str, Any], model: ConfigDict
    ) -> None:
        self.trainer, self.folder, self.about, self.model = trainer, folder, dict(about), model
        self.saved_at = time.monotonic()

    def to_the_end(self, each_epoch: Callable[[Sequence[Record]], None]) -> Result:
        trainer = self.trainer
        while trainer.at.ended is None:
            try:
                trainer.train_epoch(after_step=self.save_if_due)
                record = trainer.close_epoch(trainer.validate())
            except Interrupted:
                trainer.note_time("interrupted")
                self.save()
                trainer.ranks.wait()  # who starts ranks may end them all as soon as one has left
                raise
            if record["best"]:
                self.export("best")
            self.save()
            each_epoch(trainer.log.epochs)
        self.export("last")
        trainer.learner.model.load_state_dict(trainer.learner.best)
        if _record_of(trainer.at.guide.best_epoch, trainer.log.epochs).get("constant"):
            trainer.display.warn(
                "WARNING: constant: the weights of the best epoch give every validation image the same "
                "answer, so their accuracy is the share of one class"
            )
        return Result(
            model=trainer.learner.model.eval(),
            best_epoch=trainer.at.guide.best_epoch,
            best_robust=trainer.at.guide.best,
            epochs=trainer.log.epochs,
            ended=trainer.at.ended,
            seconds=trainer.log.seconds,
            folder=self.folder.path if self.folder else None,
        )

    def export(self, which: str) -> None:
        """The best or the last evaluated weights as a file of their own."""
        if self.folder is not None:
            trainer = self.trainer
            last = trainer.at.epoch - 1, trainer.learner.evaluated.state_dict()
            epoch, weights = last if which == "last" else (trainer.at.guide.best_epoch, trainer.learner.best)
            self.folder.save_weights(which, weights, {**self.about, "epoch": epoch})

    def save_if_due(self) -> None:
        if time.monotonic() - self.saved_at > 60 * self.trainer.training.checkpoint_minutes:
            self.save()

    def require_room(self) -> None:
        """A trial write, so that a disk that is too small does not come out after the first epoch."""
        if self.folder is not None:
            self.folder.require_room(*self.trainer.learner.sizes())

    def save(self) -> None:
        if self.folder is not None:
            about = {which: self.about[which] for which in ("data", "validation", "run")}
            about |= {"model": self.model, **self.trainer.state()}
            self.folder.save_state(self.trainer.learner.tensors(), about)
        self.saved_at = time.monotonic()

    def restore(self, allow_changes: bool) -> None:
        """Resume from the newest good state in the folder; without one, start."""
        found = self.trainer.ranks.from_first(self.newest(allow_changes))
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
        self.trainer.learner.load(tensors)
        try:
            self.trainer.go_on_from(about)
        except UsageError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"the saved state is of another version of atlas ({type(error).__name__}: {error}): go on "
                "with the one that wrote it, or start the run anew"
            ) from error
        self.about["run"] = about.get("run", self.about["run"])
        self.repair_best()

    def newest(self, allow_changes: bool) -> State | None:
        """The newest good state in the folder, with a warning of those that are damaged."""
        found = self.folder.load_state() if self.folder else None
        if found is None:
            return None
        tensors, about, complaints = found
        for complaint in complaints:
            self.trainer.display.warn(f"{complaint}; going on from the state before")
        assert self.folder is not None
        self.check_model(tensors, about.get("model"), allow_changes)
        return tensors, {"validated_with": self.folder.validated_with(), **about}

    def check_model(self, tensors: Mapping[str, Tensor], run: ConfigDict | None, allow_changes: bool) -> None:
        """Refuse another model than the run's. Older versions did not describe it."""
        if run is None:
            return
        given = self.model
        if self.trainer.learner.trained_to(tensors):  # the same object again, after a signal or at the end
            given = {key: value for key, value in given.items() if key in ("layers", "frozen")}
        reason = difference(run, given)
        if reason is None:
            self.model = run
        elif not allow_changes:
            assert self.folder is not None
            raise CheckpointError(
                f"{self.folder.path} holds the run of another model: {reason}. Choose another folder; or "
                "build the model as it was at the first start (call torch.manual_seed first); or allow "
                "changes (--allow-changes) to continue the run with its saved weights, not the given ones"
            )

    def repair_best(self) -> None:
        """Export the best weights again where their file is not what the state holds."""
        best = self.trainer.learner.best
        if self.folder is not None and self.trainer.at.guide.best_epoch >= 0:
            problem = self.folder.problem_with_best(best)
            if problem is not None:
                self.export("best")
                self.trainer.display.say(f"{problem}; exported it again from the saved state")


def _record_of(epoch: int, epochs: Sequence[Record]) -> Record:
    """The record of an epoch; nothing on a rank that was started after it."""
    return next((record for record in epochs if record["epoch"] == epoch), {})
