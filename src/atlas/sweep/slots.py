"""Slots: the places of a sweep, numbered from 0, each of which gives one row of its table.

Optuna numbers trials in the order in which workers of any machine asked for them, without gaps. A trial that
was lost with its worker is marked FAIL, and a new one takes its slot; one that went wrong by its own fault is
marked PRUNED, from which a search learns. One that was asked for beyond the total, by two workers at once, is
surplus. All others have slots in the order of their numbers, so that all workers agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from optuna.trial import FrozenTrial, TrialState

SLOT = "slot"
"""The slot that a trial takes over from one that was lost."""
SURPLUS = "surplus"
OUTCOME = "outcome"
"""What came out of the trial; see `atlas.sweep.outcome`."""


def slot_of(trial: FrozenTrial, trials: Iterable[FrozenTrial]) -> int:
    """The slot of one of the trials."""
    if SLOT in trial.user_attrs:
        return int(trial.user_attrs[SLOT])
    return sum(_has_own(other) and other.number < trial.number for other in trials)


def newest(trials: Sequence[FrozenTrial]) -> dict[int, FrozenTrial]:
    """For each slot that is taken, the trial that speaks for it: the last, unless one before it has ended."""
    found: dict[int, FrozenTrial] = {}
    for trial in sorted(trials, key=lambda t: t.number):
        if SURPLUS in trial.user_attrs:
            continue
        slot = slot_of(trial, trials)
        if slot not in found or found[slot].state == TrialState.FAIL:
            found[slot] = trial
    return found


def _has_own(trial: FrozenTrial) -> bool:
    return SLOT not in trial.user_attrs and SURPLUS not in trial.user_attrs
