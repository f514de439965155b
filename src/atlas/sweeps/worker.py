"""A worker: takes trials until none is left. A trial is a run as `atlas train` makes it, then its score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from optuna import Trial
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from atlas import data
from atlas.attacks import ATTACKS, Attack
from atlas.attacks import suites as attack_suites
from atlas.config import fingerprint, overridden
from atlas.data import Images
from atlas.errors import AtlasError, DataError, NumericError, UsageError, unknown
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.plan import Plan, build_attack
from atlas.runs import Record, Run
from atlas.signals import caught_signals
from atlas.sweeps.queue import DEATHS, GRACE_SECONDS, Queue, translate_db_errors, wait_for_lock
from atlas.sweeps.results import (
    DONE,
    FAILED,
    OUTCOME,
    PRUNED,
    TrialResult,
    best,
    read_results,
    short,
    write_results,
)
from atlas.sweeps.study import Sweep
from atlas.training import RunConfig, StopTraining, train
from atlas.training.settings import REGISTRIES

MOST_DEATHS = 5
"""A trial at which so many workers died, by the memory it needs, say, is given up."""
TRIED = {"model", "data", "training.validation.size", "training.batch_size"}
"""Settings that only a training shows to be incompatible."""


def named_attack(word: str, data_name: str) -> tuple[str, Attack]:
    """(label, attack): an attack of any suite by its label, in the form for the data, or of the registry."""
    labels: dict[str, tuple[str, Attack]] = {}
    for name in attack_suites.names():
        for label, table in attack_suites.suite(name, data_name).attacks.items():
            if table["name"] != attack_suites.TRANSFER:
                labels.setdefault(label.lower(), (label, build_attack(table)))
    if word.lower() in labels:
        return labels[word.lower()]
    if ":" not in word and word not in ATTACKS:
        raise unknown("attack", word, {*labels, *ATTACKS})
    return word, build_attack({"name": word})


def held_out(config: RunConfig, root: Path | None) -> Images:
    """The validation images of a run."""
    images = data.load(config.data, train=True, root=root)
    return data.split(images, config.training.validation.size, config.training.seed)[1]


@dataclass(frozen=True)
class SweepWorker:
    """One process of a sweep, with the options of `atlas train` for its trials."""

    sweep: Sweep
    queue: Queue
    say: Callable[[str], None]
    root: Path | None = None
    device: str | None = None
    progress: bool = True

    def run(self) -> list[TrialResult]:
        """Do trials until all have been started; the results that are known then, best first."""
        folder, total = self.queue.folder, self.queue.total
        trials = "1 trial" if total == 1 else f"{total} trials"
        self.say(f"writing to {folder}: {trials} over {', '.join(self.sweep.space)}")
        for key in self.sweep.measures:
            self.say(f"trials are scored by {key} too: only scores with the same value of it can be compared")
        with caught_signals() as requests:
            while True:
                with self.queue.claim() as trial:
                    if trial is None:
                        break
                    try:
                        self._do(trial, requests.check)
                    except AtlasError:  # a signal, or a fault of the machine and not of the trial
                        self.queue.release(trial)
                        raise
        found = self._write()
        if left := len(self.queue.unfinished()):
            self.say(
                f"other workers are still at {left} of the trials; if one of them dies, the same command "
                f"resumes its trial (with --storage, {GRACE_SECONDS // 60} minutes later)"
            )
        return found

    def _do(self, trial: Trial, check: Callable[[], None]) -> None:
        name, total = f"trial {trial.number + 1}", self.queue.total
        values = ", ".join(f"{key} {short(value)}" for key, value in trial.params.items())
        self.say(f"{name} of {total}: {values}; in {self._folder('trials', trial)}")
        try:
            result = self._result(trial, check)
            trial.set_user_attr(OUTCOME, result.plain())
            # Pruned, not failed: TPE learns from pruned trials, and so to avoid failures.
            state = TrialState.COMPLETE if result.state == DONE else TrialState.PRUNED
            self.queue.study.tell(trial, result.score, state)
        except UpdateFinishedTrialError:
            self.say(f"{name} was given to another worker meanwhile, whose result counts")
            return
        text = f"{result.state}: {result.note}"
        if result.state == DONE:
            text = f"scored {result.score:.2%} (clean {result.clean:.2%}) in {result.seconds:.0f} s"
            text += f", {result.note}" if result.note else ""
        found = self._write()
        text += f"; {len(found)} of {total} trials ended"
        if left := total - len(found):
            minutes = left * sum(result.seconds for result in found) / len(found) / 60
            text += f", about {minutes:.1f} minutes of work left"
        if (top := best(found)) is not None:
            text += f", best so far: trial {top.number + 1} with {top.score:.2%}"
        self.say(f"{name} {text}")

    def _result(self, trial: Trial, check: Callable[[], None]) -> TrialResult:
        """Train and score the trial, resuming what an earlier worker left.

        `check` raises if a signal has come while neither the training nor the attack was listening.
        """
        number, values = trial.number, trial.params
        try:
            config = RunConfig.of(overridden(self.sweep.base, values.items(), REGISTRIES))
        except UsageError as error:  # two incompatible values
            return TrialResult(number, values, FAILED, "", 0, str(error))
        # Errors that the trial's values explain; any other is the machine's and ends the worker.
        tried = not TRIED.isdisjoint(values)
        faults = (NumericError, UsageError, DataError) if tried else (NumericError,)
        n, score, deaths = 0, None, trial.user_attrs.get(DEATHS, 0)
        try:
            images = held_out(config, self.root)
            n = len(images)
            if deaths < MOST_DEATHS:
                state, note, score = self._attempt(trial, config, images, check)
            else:
                state, note = FAILED, f"{deaths} workers died at it"
        except faults as error:
            state, note = FAILED, str(error)
        run = Run(self._folder("trials", trial))
        top = run.best or {}
        return TrialResult(
            number,
            values,
            state,
            fingerprint(config.table()),
            n,
            note="; ".join(filter(None, [note, *(f"collapse in epoch {k + 1}" for k in run.collapses)])),
            clean=top.get("val_clean"),
            robust=top.get("val_robust"),
            score=score,
            best_epoch=top["epoch"] + 1 if top else None,
            epochs=len(run.epochs),
            seconds=round(run.seconds, 1),
        )

    def _attempt(
        self, trial: Trial, config: RunConfig, images: Images, check: Callable[[], None]
    ) -> tuple[str, str, float | None]:
        """(state, note, score) of a training, which ends early if it falls behind, and its score attack.

        The first step that Optuna hears of is the first epoch that ends with the full eps. Before, the
        accuracy says little; and trials with ramps of different lengths are compared after the same number of
        epochs at the full eps.
        """
        first = max(config.training.schedule.ramp_epochs - 1, 0)
        known = len(self.queue.trials()[trial.number].intermediate_values)  # by a worker before this one
        pruned = ""

        def report(records: Sequence[Record]) -> None:
            nonlocal known
            for record in records[first + known :]:
                trial.report(record["val_robust"], record["epoch"] - first)
                known += 1

        def on_epoch(records: Sequence[Record]) -> None:
            nonlocal pruned
            report(records)
            if len(records) > first and trial.should_prune():
                pruned = f"behind the median after epoch {len(records)}"
                raise StopTraining(pruned)
            check()

        check()
        result = train(
            config,
            self._folder("trials", trial),
            data_root=self.root,
            device=self.device,
            on_epoch=on_epoch,
            progress=self.progress,
        )
        if pruned:
            return PRUNED, pruned, None
        report(result.epochs)
        check()
        if self.sweep.score is None:
            return DONE, "", result.best_robust
        plan = Plan(config.threat, dict([self.sweep.score]), seed=config.training.seed)
        scored = Evaluation(result.model, images, plan).run(
            self._folder("scores", trial), progress=self.progress
        )
        if scored.worst.reasons:
            raise NumericError(f"the score is invalid: {', '.join(scored.worst.reasons)}")
        return DONE, "", scored.worst.rate

    def _folder(self, kind: str, trial: Trial) -> Path:
        return self.queue.folder / kind / f"{trial.number + 1:03d}"

    def _write(self) -> list[TrialResult]:
        """Write table, figure and best preset, and return the results."""
        with wait_for_lock(self.queue.folder):
            found = read_results(self.queue.trials())
            write_results(found, self.sweep, self.queue.folder, self.queue.total)
        return found


def work(
    sweep: Sweep,
    trials: int | None,
    folder: Path,
    url: str | None,
    say: Callable[[str], None],
    root: Path | None = None,
    device: str | None = None,
    progress: bool = True,
) -> list[TrialResult]:
    """Take part in a sweep, as its first worker or a later one, until all its trials have been started.

    Args:
        trials: How many in all; None for the whole grid.
        url: Of the storage; None for SQLite in the folder.
        say: Prints a line.

    Returns:
        The results that are known at the end, best first.
    """
    with translate_db_errors(url):
        queue = Queue.join(sweep, folder, url, len(sweep.points) if trials is None else trials)
        return SweepWorker(sweep, queue, say, root, device, progress).run()
