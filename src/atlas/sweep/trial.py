"""One trial: a run as `atlas train` would make it, followed epoch by epoch, then its score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna import Trial

from atlas.config import fingerprint, overridden
from atlas.errors import AtlasError, DataError, NumericError, UsageError
from atlas.sweep.outcome import DONE, FAILED, PRUNED, Outcome
from atlas.sweep.queue import Claim
from atlas.sweep.scoring import held_out, score
from atlas.sweep.study import Sweep
from atlas.training import RunConfig, train
from atlas.training.log import Record
from atlas.training.settings import REGISTRIES

DEATHS = 5
"""A trial at which so many workers died is given up."""


DECIDE = {"model", "data", "training.validation.size", "training.batch_size"}
"""Settings of which only a training can tell whether they go together."""


class Pruned(Exception):
    """The run is not worth going on with."""


@dataclass(frozen=True)
class Place:
    """Where trials are made: the sweep's folder, and what `atlas train` takes as options."""

    folder: Path
    root: Path | None = None
    device: str | None = None
    progress: bool = True

    def run(self, slot: int) -> Path:
        """The run folder of a slot."""
        return self.folder / "trials" / f"{slot + 1:03d}"

    def score(self, slot: int) -> Path:
        """Where the score of a slot's run is worked out."""
        return self.folder / "scores" / f"{slot + 1:03d}"


def carry_out(claim: Claim, sweep: Sweep, place: Place, check: Callable[[], None]) -> Outcome:
    """Train and score the trial, from where an earlier worker left it.

    `check` raises where a signal has come in while neither the training nor the attack were listening.
    """
    table, folder = overridden(sweep.base, claim.trial.params.items(), REGISTRIES), place.run(claim.slot)
    try:
        config = RunConfig.of(table)
    except UsageError as error:  # two values that do not go together
        return Outcome(FAILED, "", 0, str(error))
    try:
        images = held_out(config, place.root)
    except _faults(claim) as error:
        return Outcome(FAILED, fingerprint(config.table()), 0, str(error))
    about = (folder, fingerprint(config.table()), len(images))
    if claim.deaths >= DEATHS:
        return Outcome.of(FAILED, *about, note=f"{claim.deaths} workers died at it")
    check()
    follower = _Follower(claim.trial, config.training.schedule.ramp_epochs, check)
    try:
        result = train(
            config,
            folder,
            data_root=place.root,
            device=place.device,
            each_epoch=follower,
            progress=place.progress,
        )
        follower.report(result.epochs)
        check()
        value = result.best_robust
        if sweep.score is not None:
            where = place.score(claim.slot)
            value = score(result.model, images, config, sweep.score, where, place.progress)
    except Pruned as why:
        return Outcome.of(PRUNED, *about, note=str(why))
    except _faults(claim) as error:
        return Outcome.of(FAILED, *about, note=str(error))
    return Outcome.of(DONE, *about, score=value)


def _faults(claim: Claim) -> tuple[type[AtlasError], ...]:
    """The errors that are the trial's own, of values that others need not have."""
    own = not DECIDE.isdisjoint(claim.trial.params)
    return (NumericError, UsageError, DataError) if own else (NumericError,)


class _Follower:
    """Reports validation robust accuracy after each epoch, and ends a run that falls behind.

    The first step is the first epoch that ends with the full eps. Before, the accuracy says little; and
    trials with ramps of different lengths are compared after the same number of epochs at the full eps.
    """

    def __init__(self, trial: Trial, ramp_epochs: int, check: Callable[[], None]) -> None:
        self.trial, self.first, self.check = trial, max(ramp_epochs - 1, 0), check
        self.reported = 0

    def report(self, records: Sequence[Record]) -> None:
        """Those that have not been reported: all of them, where another worker began the run."""
        for record in records[max(self.reported, self.first) :]:
            self.trial.report(record["val_robust"], record["epoch"] - self.first)
        self.reported = len(records)

    def __call__(self, records: Sequence[Record]) -> None:
        self.report(records)
        if len(records) > self.first and self.trial.should_prune():
            raise Pruned(f"behind the median after epoch {len(records)}")
        self.check()
