"""Schedules: the ramp, the learning rate, and the tracker against torch's own plateau rule."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import ReduceLROnPlateau

from atlas.errors import UsageError
from atlas.training.schedule import PlateauTracker, Schedule

thorough = settings(deadline=None, derandomize=True, max_examples=200)
# Few different values, so that ties and long plateaus are common.
accuracies = st.lists(st.sampled_from([0.0, 0.1, 0.4, 0.5, 0.7, 0.90001, 0.9]), min_size=1, max_size=60)
GUIDED = Schedule(kind="guided", epochs=1000, ramp_epochs=0)


def follow(schedule: Schedule, values: list[float], first: int = 0) -> list[tuple[int, str | None]]:
    """(cuts, why it ended) after each epoch."""
    tracker, seen = PlateauTracker(), []
    for epoch, value in enumerate(values, first):
        tracker.update(epoch, value, schedule)
        seen.append((tracker.cuts, tracker.finished(epoch, schedule)))
    return seen


# --- the tracker ---


@thorough
@given(values=accuracies, patience=st.integers(1, 4), factor=st.sampled_from([0.2, 0.5]))
def test_cuts_are_torchs_reduce_on_plateau(values: list[float], patience: int, factor: float) -> None:
    """After the ramp: "no gain for n epochs" is ReduceLROnPlateau(patience=n - 1, threshold=0)."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    oracle = ReduceLROnPlateau(
        optimizer, mode="max", patience=patience - 1, threshold=0, factor=factor, eps=0.0
    )
    schedule = Schedule(epochs=1000, ramp_epochs=0, plateau=patience, patience=1000, factor=factor)
    tracker = PlateauTracker()
    for epoch, value in enumerate(values):
        oracle.step(value)
        tracker.update(epoch, value, schedule)
        assert schedule.lr_factor(epoch, tracker.cuts) == pytest.approx(
            optimizer.param_groups[0]["lr"], rel=1e-9
        )


@thorough
@given(during=accuracies, after=accuracies)
def test_with_a_ramp_only_later_epochs_count(during: list[float], after: list[float]) -> None:
    """Epochs of the ramp may set the best, and do nothing else."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    oracle = ReduceLROnPlateau(optimizer, mode="max", patience=1, threshold=0, factor=0.2, eps=0.0)
    oracle.step(max(during))
    schedule = Schedule(epochs=1000, ramp_epochs=len(during), patience=1000)
    seen = follow(schedule, during + after)
    assert all(state == (0, None) for state in seen[: len(during)])
    for (cuts, _), value in zip(seen[len(during) :], after, strict=True):
        oracle.step(value)
        assert 0.2**cuts == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)


@thorough
@given(values=accuracies, patience=st.integers(1, 12), ramp=st.integers(0, 20))
def test_stops_after_epochs_without_gain(values: list[float], patience: int, ramp: int) -> None:
    """It ends after the first epoch that is `patience` counted epochs past the last gain."""
    schedule = Schedule(epochs=1000, ramp_epochs=ramp, patience=patience)
    for epoch, (_, ended) in enumerate(follow(schedule, values)):
        best = max(range(epoch + 1), key=lambda e: (values[e], -e))  # the first epoch with the best value
        counted = [e for e in range(best + 1, epoch + 1) if e >= ramp]
        assert (ended is not None) == (len(counted) >= patience)
        if ended:
            assert ended == f"no gain for {patience} epochs"
            return


def test_the_papers_numbers() -> None:
    """Cut after 2, 4, 6, ... epochs without gain, stop after 10."""
    seen = follow(GUIDED, [0.5] + [0.4] * 10)
    assert [cuts for cuts, _ in seen] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert [ended for _, ended in seen] == [None] * 10 + ["no gain for 10 epochs"]


def test_an_equal_accuracy_is_no_gain_and_nan_never_the_best() -> None:
    tracker = PlateauTracker()
    assert tracker.update(0, 0.5, GUIDED)
    assert not tracker.update(1, 0.5, GUIDED)
    assert not tracker.update(2, math.nan, GUIDED)
    assert (tracker.best, tracker.best_epoch, tracker.cuts) == (0.5, 0, 1)
    assert tracker.update(3, 0.50001, GUIDED)
    assert (tracker.best, tracker.best_epoch, tracker.since_best) == (0.50001, 3, 0)


def test_an_accuracy_of_0_can_be_the_first_best() -> None:
    tracker = PlateauTracker()
    assert tracker.update(0, 0.0, GUIDED)
    assert tracker.best_epoch == 0


@pytest.mark.parametrize("kind", ["constant", "piecewise", "cosine", "one-cycle"])
def test_fixed_schedules_neither_cut_nor_stop_early(kind: Any) -> None:
    schedule = Schedule(kind=kind, epochs=30, ramp_epochs=0, milestones=(10.0,))
    seen = follow(schedule, [0.5] + [0.1] * 29)
    assert [cuts for cuts, _ in seen] == [0] * 30
    assert [ended for _, ended in seen] == [None] * 29 + ["all 30 epochs done"]


def test_guided_training_has_a_cap() -> None:
    seen = follow(Schedule(epochs=5, ramp_epochs=0), [0.1, 0.2, 0.3, 0.4, 0.5])
    assert [ended for _, ended in seen] == [None] * 4 + ["all 5 epochs done"]


# --- learning rates ---


HALF = math.sqrt(0.5) / 2


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (Schedule(kind="constant"), {0: 1, 50: 1}),
        (
            Schedule(kind="piecewise", milestones=(50.0, 75.0), factor=0.1),
            {0: 1, 49.99: 1, 50: 0.1, 74.99: 0.1, 75: 0.01, 99: 0.01},
        ),
        (Schedule(kind="cosine", epochs=40), {0: 1, 10: 0.5 + HALF, 20: 0.5, 30: 0.5 - HALF, 40: 0}),
        (Schedule(kind="one-cycle", epochs=50), {0: 0, 10: 0.5, 20: 1, 35: 0.5, 50: 0}),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_rates(schedule: Schedule, rates: dict[float, float]) -> None:
    assert [schedule.lr_factor(epoch, 0) for epoch in rates] == pytest.approx([*rates.values()], abs=1e-12)


@pytest.mark.parametrize("kind", ["constant", "piecewise", "cosine", "one-cycle", "guided"])
def test_a_rollbacks_cut_lowers_every_rate(kind: Any) -> None:
    schedule = Schedule(kind=kind, epochs=50, milestones=(10.0,))
    assert schedule.lr_factor(17, 1) == pytest.approx(0.2 * schedule.lr_factor(17, 0))


# --- the ramp ---


def test_ramp() -> None:
    schedule = Schedule(ramp_epochs=15)
    found = [schedule.ramp(epoch) for epoch in (0, 1.5, 7.5, 15, 15.1, 99)]
    assert found == pytest.approx([0, 0.1, 0.5, 1, 1, 1])
    assert Schedule(ramp_epochs=0).ramp(0) == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epochs": 0}, "epochs must be an integer >= 1, got 0"),
        ({"plateau": 0}, "plateau must be an integer >= 1, got 0"),
        ({"patience": 0}, "patience must be an integer >= 1, got 0"),
        ({"ramp_epochs": -1}, "-1"),
        ({"factor": 0.0}, "factor must be > 0 and <= 1, got 0.0"),
        ({"factor": 1.1}, "factor must be > 0 and <= 1, got 1.1"),
        ({"factor": math.nan}, "factor must be > 0 and <= 1, got nan"),
        ({"kind": "piecewise"}, "needs milestones"),
        ({"milestones": (50.0, math.nan)}, "milestones must be epochs >= 0, .*got .50.0, nan."),
        ({"milestones": (-1.0,)}, "milestones must be epochs >= 0"),
        ({"milestones": (math.inf,)}, "milestones must be epochs >= 0"),
        ({"kind": "cosin"}, "did you mean 'cosine'"),
    ],
    ids=str,
)
def test_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Schedule(**wrong)


def test_of_equal_epochs_one_at_the_full_eps_goes_before_one_of_the_ramp() -> None:
    """Validation may be at 100% from the start; the first epoch after the ramp stays, as among all others."""
    tracker, schedule = PlateauTracker(), Schedule(epochs=5, ramp_epochs=2)
    assert [tracker.update(epoch, 1.0, schedule) for epoch in range(5)] == [True, False, True, False, False]
    assert (tracker.best_epoch, tracker.since_best) == (2, 3)
