"""What came out of a trial: one row of the sweep's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from atlas.evaluation import Score
from atlas.sweep.slots import OUTCOME, newest
from atlas.training.folder import RunFolder
from atlas.training.log import Record, read_metrics, read_seconds

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
        epochs = epochs_of(folder)
        seconds = read_seconds(RunFolder(folder).timing)
        best = next((epoch for epoch in reversed(epochs) if epoch["best"]), None)
        found = {} if best is None else {"clean": best["val_clean"], "robust": best["val_robust"]}
        notes = [rest.pop("note", ""), *map(_collapse, epochs)]
        return cls(
            state,
            config,
            n,
            note="; ".join(filter(None, notes)),
            **found,
            best_epoch=None if best is None else best["epoch"] + 1,
            epochs=len(epochs),
            seconds=round(seconds, 1),
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


def epochs_of(folder: Path) -> list[Record]:
    """The records of a run's epochs."""
    return [line for line in read_metrics(RunFolder(folder).metrics) if line["kind"] == "epoch"]


def _collapse(record: Record) -> str:
    return f"collapse in epoch {record['epoch'] + 1}" if record["collapse"] else ""
