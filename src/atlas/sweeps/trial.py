"""One trial: a run as `atlas train` would make it, followed epoch by epoch, then its score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from optuna import Trial
from optuna.trial import FrozenTrial
from torch import nn

from atlas import data
from atlas.attacks import ATTACKS, Attack
from atlas.attacks import suites as attack_suites
from atlas.attacks.suites import TRANSFER
from atlas.config import fingerprint, overridden
from atlas.data import Images
from atlas.errors import AtlasError, DataError, NumericError, UsageError, unknown
from atlas.evaluation import Score
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.plan import Plan, build_attack
from atlas.runs import Record, Run
from atlas.sweeps.queue import OUTCOME, Claim, newest
from atlas.sweeps.study import Sweep
from atlas.training import RunConfig, StopTraining, train
from atlas.training.settings import REGISTRIES

DEATHS = 5
"""A trial at which so many workers died is given up."""


DECIDE = {"model", "data", "training.validation.size", "training.batch_size"}
"""Settings of which only a training can tell whether they go together."""


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
            on_epoch=follower,
            progress=place.progress,
        )
        if follower.pruned:
            return Outcome.of(PRUNED, *about, note=follower.pruned)
        follower.report(result.epochs)
        check()
        value = result.best_robust
        if sweep.score is not None:
            where = place.score(claim.slot)
            value = score(result.model, images, config, sweep.score, where, place.progress)
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
        self.pruned = ""
        """Why the run was ended, if it was."""

    def report(self, records: Sequence[Record]) -> None:
        """Those that have not been reported: all of them, where another worker began the run."""
        for record in records[max(self.reported, self.first) :]:
            self.trial.report(record["val_robust"], record["epoch"] - self.first)
        self.reported = len(records)

    def __call__(self, records: Sequence[Record]) -> None:
        self.report(records)
        if len(records) > self.first and self.trial.should_prune():
            self.pruned = f"behind the median after epoch {len(records)}"
            raise StopTraining(self.pruned)
        self.check()


DONE, PRUNED, FAILED = "done", "pruned", "failed"


@dataclass(frozen=True)
class Outcome:
    """Accuracies are of the best epoch, on the validation images."""

    state: str
    """done, pruned or failed."""
    config: str
    """The configuration's hash, as in the run's `config.json`."""
    n: int
    """Validation images."""
    note: str = ""
    clean: float | None = None
    robust: float | None = None
    """Under the preset's validation attack."""
    score: float | None = None
    """What the sweep maximises; only of trials that came to their end."""
    best_epoch: int | None = None
    epochs: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, state: str, folder: Path, config: str, n: int, **rest: Any) -> Outcome:
        """From what a run has written so far."""
        run = Run(folder)
        best = run.best
        found = {} if best is None else {"clean": best["val_clean"], "robust": best["val_robust"]}
        notes = [rest.pop("note", ""), *(f"collapse in epoch {epoch + 1}" for epoch in run.collapses)]
        return cls(
            state,
            config,
            n,
            note="; ".join(filter(None, notes)),
            **found,
            best_epoch=None if best is None else best["epoch"] + 1,
            epochs=len(run.epochs),
            seconds=round(run.seconds, 1),
            **rest,
        )

    def score_of(self, share: float | None) -> Score | None:
        """An accuracy of this outcome with its n."""
        return None if share is None else Score(round(share * self.n), self.n)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Row:
    """A slot that has an outcome."""

    slot: int
    values: Mapping[str, Any] = field(hash=False)
    outcome: Outcome


def rows(trials: Sequence[FrozenTrial]) -> list[Row]:
    """All outcomes so far: finished trials by their score, then pruned ones, then failed ones."""
    found = []
    for slot, trial in newest(trials).items():
        if trial.state.is_finished() and OUTCOME in trial.user_attrs:
            found.append(Row(slot, trial.params, Outcome(**trial.user_attrs[OUTCOME])))
    return sorted(found, key=_rank)


def _rank(row: Row) -> tuple[int, float, int]:
    outcome = row.outcome
    value = outcome.score if outcome.score is not None else outcome.robust
    return (DONE, PRUNED, FAILED).index(outcome.state), -(value or 0.0), row.slot


def best(found: Sequence[Row]) -> Row | None:
    """The finished trial with the highest score."""
    return found[0] if found and found[0].outcome.state == DONE else None


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
