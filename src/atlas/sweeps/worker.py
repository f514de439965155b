"""A worker: takes trials until none is left. A trial is a run as `atlas train` makes it, then its score."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna import Trial
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState
from torch import nn

from atlas import data
from atlas.attacks import ATTACKS, Attack
from atlas.attacks import suites as attack_suites
from atlas.attacks.suites import TRANSFER
from atlas.config import fingerprint, overridden
from atlas.data import Images
from atlas.errors import AtlasError, DataError, LostWorkerError, NumericError, UsageError, unknown
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.plan import Plan, build_attack
from atlas.runs import Record, Run
from atlas.signals import caught_signals
from atlas.sweeps.queue import (
    GRACE_SECONDS,
    OUTCOME,
    Claim,
    Queue,
    check_folder,
    open_storage,
    translate_db_errors,
    wait_for_lock,
)
from atlas.sweeps.results import DONE, FAILED, PRUNED, TrialResult, best, read_results, write_results
from atlas.sweeps.study import Sweep, grid_points, join
from atlas.training import RunConfig, StopTraining, train
from atlas.training.settings import REGISTRIES

DEATHS = 5
"""A trial at which so many workers died is given up."""
RECHECK_SECONDS = 2.0
TRIED = {"model", "data", "training.validation.size", "training.batch_size"}
"""Settings that only a training shows to be incompatible."""


@dataclass(frozen=True)
class SweepFolder:
    """Where a sweep works, and the options of `atlas train` for its trials."""

    path: Path
    root: Path | None = None
    device: str | None = None
    progress: bool = True

    def run(self, slot: int) -> Path:
        """The run folder of a slot."""
        return self.path / "trials" / f"{slot + 1:03d}"

    def score(self, slot: int) -> Path:
        """Where the score of a slot's run is computed."""
        return self.path / "scores" / f"{slot + 1:03d}"


def named_attack(word: str, data_name: str) -> tuple[str, Attack]:
    """(label, attack): an attack of any suite by its label, in the form for the data, or of the registry."""
    labels: dict[str, tuple[str, Attack]] = {}
    for name in attack_suites.names():
        for label, table in attack_suites.suite(name, data_name).attacks.items():
            if table["name"] != TRANSFER:
                labels.setdefault(label.lower(), (label, build_attack(table)))
    if word.lower() in labels:
        return labels[word.lower()]
    if ":" not in word and word not in ATTACKS:
        raise unknown("attack", word, {*labels, *ATTACKS})
    return word, build_attack({"name": word})


def run_trial(claim: Claim, sweep: Sweep, folder: SweepFolder, check: Callable[[], None]) -> TrialResult:
    """Train and score the trial, resuming what an earlier worker left.

    `check` raises if a signal has come while neither the training nor the attack was listening.
    """
    path, hashed, n = folder.run(claim.slot), "", 0

    def ended(state: str, note: str = "", score: float | None = None) -> TrialResult:
        run = Run(path)
        top: Record = run.best or {}
        collapses = [f"collapse in epoch {epoch + 1}" for epoch in run.collapses]
        return TrialResult(
            claim.slot,
            claim.trial.params,
            state,
            hashed,
            n,
            note="; ".join(filter(None, [note, *collapses])),
            clean=top.get("val_clean"),
            robust=top.get("val_robust"),
            score=score,
            best_epoch=top["epoch"] + 1 if top else None,
            epochs=len(run.epochs),
            seconds=round(run.seconds, 1),
        )

    # Errors that the trial's values explain; any other is the machine's and ends the worker.
    tried = not TRIED.isdisjoint(claim.trial.params)
    faults: tuple[type[AtlasError], ...] = (NumericError, UsageError, DataError) if tried else (NumericError,)
    try:
        config = RunConfig.of(overridden(sweep.base, claim.trial.params.items(), REGISTRIES))
    except UsageError as error:  # two incompatible values
        return ended(FAILED, str(error))
    hashed = fingerprint(config.table())
    try:
        images = held_out(config, folder.root)
        n = len(images)
        if claim.deaths >= DEATHS:
            return ended(FAILED, f"{claim.deaths} workers died at it")
        check()
        follower = _Follower(claim.trial, config.training.schedule.ramp_epochs, check)
        result = train(
            config,
            path,
            data_root=folder.root,
            device=folder.device,
            on_epoch=follower,
            progress=folder.progress,
        )
        if follower.pruned:
            return ended(PRUNED, follower.pruned)
        follower.report(result.epochs)
        check()
        value = result.best_robust
        if sweep.score is not None:
            where = folder.score(claim.slot)
            value = score(result.model, images, config, sweep.score, where, folder.progress)
    except faults as error:
        return ended(FAILED, str(error))
    return ended(DONE, score=value)


def held_out(config: RunConfig, root: Path | None) -> Images:
    """The validation images of a run."""
    images = data.load(config.data, train=True, root=root)
    return data.split(images, config.training.validation.size, config.training.seed)[1]


def score(
    model: nn.Module,
    images: Images,
    config: RunConfig,
    attack: tuple[str, Attack],
    folder: Path,
    progress: bool,
) -> float:
    """The share of the images that the model still gets right; resumable in its folder."""
    plan = Plan(config.threat, dict([attack]), seed=config.training.seed)
    report = Evaluation(model, images, plan).run(folder, progress=progress)
    if report.worst.reasons:
        raise NumericError(f"the score is invalid: {', '.join(report.worst.reasons)}")
    return report.worst.rate


class _Follower:
    """Reports validation robust accuracy after each epoch, and ends a run that falls behind.

    The first step is the first epoch that ends with the full eps. Before, the accuracy says little; and
    trials with ramps of different lengths are compared after the same number of epochs at the full eps.
    """

    def __init__(self, trial: Trial, ramp_epochs: int, check: Callable[[], None]) -> None:
        self.trial, self.first, self.check = trial, max(ramp_epochs - 1, 0), check
        self.reported = 0
        self.pruned = ""
        """Why the run was ended, if it was."""

    def report(self, records: Sequence[Record]) -> None:
        """Those that have not been reported: all of them if another worker started the run."""
        for record in records[max(self.reported, self.first) :]:
            self.trial.report(record["val_robust"], record["epoch"] - self.first)
        self.reported = len(records)

    def __call__(self, records: Sequence[Record]) -> None:
        self.report(records)
        if len(records) > self.first and self.trial.should_prune():
            self.pruned = f"behind the median after epoch {len(records)}"
            raise StopTraining(self.pruned)
        self.check()


def work(
    sweep: Sweep, trials: int | None, folder: SweepFolder, url: str | None, say: Callable[[str], None]
) -> list[TrialResult]:
    """Take part in a sweep, as its first worker or a later one, until all its trials have been started.

    Args:
        sweep: What to sweep; a worker that joins must give the same.
        trials: How many in all; None for the whole grid.
        folder: Where to work.
        url: Of the storage; None for SQLite in the folder.
        say: Prints a line.

    Returns:
        The results that are known at the end, best first.

    Raises:
        UsageError: The folder's study sweeps something else.
        LostWorkerError: A trial has neither a result nor a live worker.
    """
    check_folder(folder.path)
    total = len(grid_points(sweep.space)) if trials is None else trials
    number = "1 trial" if total == 1 else f"{total} trials"
    say(f"writing to {folder.path}: {number} over {', '.join(sweep.space)}")
    for key in sweep.measures:
        say(f"trials are scored by {key} too: only scores with the same value of it can be compared")
    with translate_db_errors(url or ""):
        storage = open_storage(url, folder.path)
        study = join(sweep, storage, folder.path)
        return SweepWorker(sweep, Queue(study, storage, sweep.space, folder.path, total), folder, say).run()


@dataclass(frozen=True)
class SweepWorker:
    """One process of a sweep."""

    sweep: Sweep
    queue: Queue
    folder: SweepFolder
    say: Callable[[str], None]

    def run(self) -> list[TrialResult]:
        """Do trials until all have been started; the results that are known then."""
        with caught_signals() as requests:
            while True:
                with self.queue.next() as claim:
                    if claim is None:
                        break
                    try:
                        self._do(claim, requests.check)
                    except AtlasError:  # a signal, or a fault of the machine and not of the trial
                        self.queue.release(claim.trial)
                        raise
        return self._finish()

    def _do(self, claim: Claim, check: Callable[[], None]) -> None:
        shown = {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in claim.trial.params.items()}
        values = ", ".join(f"{key} {value}" for key, value in shown.items())
        self.say(f"trial {claim.slot + 1} of {self.queue.total}: {values}; in {self.folder.run(claim.slot)}")
        try:
            result = run_trial(claim, self.sweep, self.folder, check)
            claim.trial.set_user_attr(OUTCOME, result.plain())
            if result.state == DONE:
                self.queue.study.tell(claim.trial, result.score)
            else:
                self.queue.study.tell(claim.trial, state=TrialState.PRUNED)
        except UpdateFinishedTrialError:
            self.say(f"trial {claim.slot + 1} was given to another worker meanwhile, whose result counts")
            return
        text = f"{result.state}: {result.note}"
        if result.state == DONE:
            text = f"scored {result.score:.2%} (clean {result.clean:.2%}) in {result.seconds:.0f} s"
            text += f", {result.note}" if result.note else ""
        self.say(f"trial {claim.slot + 1} {text}; {self._summary(self._write())}")

    def _write(self) -> list[TrialResult]:
        """Write table, figure and best preset, and return the results."""
        with wait_for_lock(self.folder.path):
            found = read_results(self.queue.trials())
            write_results(found, self.sweep, self.folder.path, self.queue.total)
        return found

    def _finish(self) -> list[TrialResult]:
        found = self._write()
        busy, lost = self.queue.unfinished()
        if lost:  # with a shared storage, a worker of another folder may be about to claim its trial
            time.sleep(RECHECK_SECONDS)
            busy, lost = self.queue.unfinished()
        if busy:
            self.say(
                f"other workers are still at {len(busy)} of the trials; if one of them dies, the same "
                "command resumes its trial"
            )
        if lost:
            numbers = ", ".join(str(slot + 1) for slot in lost)
            raise LostWorkerError(
                f"no result and no worker for trial {numbers} of {self.queue.total}; the table and best.toml "
                f"in {self.folder.path} are of the {len(found)} that ended. Run the same command again to "
                f"do the rest (with --storage, {GRACE_SECONDS // 60} minutes after their worker died)"
            )
        return found

    def _summary(self, found: Sequence[TrialResult]) -> str:
        top, left = best(found), self.queue.total - len(found)
        parts = [f"{len(found)} of {self.queue.total} trials ended"]
        if left > 0:
            minutes = left * sum(result.seconds for result in found) / len(found) / 60
            parts.append(f"about {minutes:.1f} minutes of work left")
        if top is not None:
            parts.append(f"best so far: trial {top.slot + 1} with {top.score:.2%}")
        return ", ".join(parts)
