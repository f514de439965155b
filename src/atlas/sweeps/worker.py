"""A worker: takes trials until none is left, and keeps the sweep's files up to date."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from atlas.errors import AtlasError, LostWorkerError
from atlas.signals import caught_signals
from atlas.sweeps.files import write_files
from atlas.sweeps.queue import OUTCOME, Claim, Queue
from atlas.sweeps.space import grid_points
from atlas.sweeps.storage import GRACE_SECONDS, check_folder, open_storage, translate_db_errors, waited_for
from atlas.sweeps.study import Sweep, join
from atlas.sweeps.trial import DONE, Outcome, Place, Row, best, carry_out, rows

NOTING_SECONDS = 2.0


def work(
    sweep: Sweep, trials: int | None, place: Place, url: str | None, say: Callable[[str], None]
) -> list[Row]:
    """Take part in a sweep, as its first worker or a later one, until all its trials have been begun.

    trials: how many in all, None for the whole grid. url: of the storage, None for SQLite in the
    folder.
    """
    check_folder(place.folder)
    total = len(grid_points(sweep.space)) if trials is None else trials
    number = "1 trial" if total == 1 else f"{total} trials"
    say(f"writing to {place.folder}: {number} over {', '.join(sweep.space)}")
    for key in sweep.measures:
        say(f"trials are scored by {key} too: compare those of one value, for the best of all means little")
    with translate_db_errors(url or ""):
        storage = open_storage(url, place.folder)
        study = join(sweep, storage, place.folder)
        return Worker(sweep, Queue(study, storage, sweep.space, place.folder, total), place, say).run()


@dataclass(frozen=True)
class Worker:
    """One process of a sweep."""

    sweep: Sweep
    queue: Queue
    place: Place
    say: Callable[[str], None]

    def run(self) -> list[Row]:
        """Do trials until all have been begun; the outcomes that are known then."""
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
        values = _words(claim.trial.params)
        self.say(f"trial {claim.slot + 1} of {self.queue.total}: {values}; in {self.place.run(claim.slot)}")
        try:
            outcome = carry_out(claim, self.sweep, self.place, check)
            self._tell(claim, outcome)
        except UpdateFinishedTrialError:
            self.say(f"trial {claim.slot + 1} was given to another worker meanwhile; its result stands")
            return
        self.write()
        self.say(f"trial {claim.slot + 1} {_result(outcome)}; {self._standing()}")

    def _tell(self, claim: Claim, outcome: Outcome) -> None:
        claim.trial.set_user_attr(OUTCOME, outcome.plain())
        if outcome.state == DONE:
            self.queue.study.tell(claim.trial, outcome.score)
        else:
            self.queue.study.tell(claim.trial, state=TrialState.PRUNED)

    def write(self) -> list[Row]:
        """Write table, figure and best preset anew."""
        with waited_for(self.place.folder):
            found = rows(self.queue.trials())
            write_files(found, self.sweep, self.place, self.queue.total)
        return found

    def _finish(self) -> list[Row]:
        found = self.write()
        busy, lost = self._unfinished()
        if busy:
            self.say(
                f"still being done by other workers: {len(busy)}; should one of them die, the same command "
                "takes its trial up again"
            )
        if lost:
            numbers = ", ".join(str(slot + 1) for slot in lost)
            raise LostWorkerError(
                f"no result and no worker for trial {numbers} of {self.queue.total}; the table and best.toml "
                f"in {self.place.folder} are of the {len(found)} that ended. Run the same command again to "
                f"do the rest (with --storage, {GRACE_SECONDS // 60} minutes after their worker died)"
            )
        return found

    def _unfinished(self) -> tuple[list[int], list[int]]:
        """The slots that live workers are at, and those that nobody is at.

        With a shared storage, a worker of another folder may be about to note that a trial is its own.
        """
        with waited_for(self.place.folder):
            found = self.queue.unfinished()
        if found[1]:
            time.sleep(NOTING_SECONDS)
            with waited_for(self.place.folder):
                found = self.queue.unfinished()
        return found

    def _standing(self) -> str:
        found = rows(self.queue.trials())
        top, left = best(found), self.queue.total - len(found)
        parts = [f"{len(found)} of {self.queue.total} trials ended"]
        if left > 0:
            minutes = left * sum(row.outcome.seconds for row in found) / len(found) / 60
            parts.append(f"about {minutes:.1f} minutes of work left")
        if top is not None:
            parts.append(f"best so far: trial {top.slot + 1} with {top.outcome.score:.2%}")
        return ", ".join(parts)


def _words(values: dict[str, object]) -> str:
    shown = {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in values.items()}
    return ", ".join(f"{key} {value}" for key, value in shown.items())


def _result(outcome: Outcome) -> str:
    if outcome.state == DONE:
        scored = f"scored {outcome.score:.2%} (clean {outcome.clean:.2%}) in {outcome.seconds:.0f} s"
        return f"{scored}, {outcome.note}" if outcome.note else scored
    return f"{outcome.state}: {outcome.note}"
