"""The timer: who runs when, what is counted, and what an error stops."""

from __future__ import annotations

import pytest

from benchmarks import timing
from benchmarks.timing import Contestant, WorkerError, interleave, seconds_of


class Clock:
    """Moves only when somebody works, and records who ran."""

    def __init__(self) -> None:
        self.now, self.ran = 0.0, list[tuple[str, str, int]]()

    def contestant(self, group: str, name: str, seconds: list[float], fails: int | None = None) -> Contestant:
        """Takes these seconds in the repeats, and raises in one of them."""

        def run(repeat: int) -> tuple[float, object]:
            self.ran.append((group, name, repeat))
            if repeat == fails:
                raise ZeroDivisionError("no luck")
            return seconds_of(lambda: self.work(seconds[max(0, repeat)]))

        return Contestant(name, run)

    def work(self, seconds: float) -> float:
        self.now += seconds
        return seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: found.now)
    return found


def test_all_of_a_group_run_one_after_the_other_in_an_order_that_changes(clock: Clock) -> None:
    names, repeats = ("a", "b", "c"), 8
    groups = {g: [clock.contestant(g, name, [1.0] * repeats) for name in names] for g in ("first", "second")}
    counted: list[int] = []
    interleave(groups, repeats, after=lambda: counted.append(1))
    assert len(counted) == 2 * 3 * repeats
    turns = [clock.ran[i : i + 3] for i in range(0, len(clock.ran), 3)]
    assert [turn[0][2] for turn in turns[::2]] == list(range(-timing.WARM_UP, repeats))
    orders: dict[str, list[list[str]]] = {"first": [], "second": []}
    for turn in turns:
        ((group, _),) = {(group, repeat) for group, _, repeat in turn}
        assert {name for _, name, _ in turn} == set(names)
        orders[group].append([name for _, name, _ in turn])
    for each in orders.values():
        assert all(before == after[::-1] for before, after in zip(each[::2], each[1::2], strict=True))
        assert len({tuple(order) for order in each[::2]}) > 1
    assert len({turn[0][0] for turn in turns[::2]}) == 2, "the groups' order changes too"
    assert groups["first"][0].seconds == groups["first"][0].results == [1.0] * repeats


def test_a_ratio_is_the_median_of_the_repeats_own_ratios(clock: Clock) -> None:
    """A machine that is ten times slower in one repeat changes no ratio."""
    ours = clock.contestant("", "ours", [2.0, 20.0, 2.0])
    slow = clock.contestant("", "slow", [6.0, 60.0, 8.0])
    interleave({"": [ours, slow]}, 3)
    assert slow.record(ours)["over_ours"] == pytest.approx([3, 3, 3.5])
    assert slow.record(ours)["seconds"] == [6, 60, 8]


def test_one_that_raises_is_recorded_and_stops_nobody(clock: Clock) -> None:
    ours, late = clock.contestant("", "ours", [2.0] * 3), clock.contestant("", "late", [4.0] * 3, fails=1)
    absent = clock.contestant("", "absent", [1.0] * 3)
    absent.error = timing.NOT_INSTALLED
    gone = Contestant("gone", lambda repeat: raised(WorkerError("ValueError: not today")))
    interleave({"": [ours, late, absent, gone]}, 3, keep_going=True)
    assert ours.seconds == [2.0] * 3
    assert (late.seconds, late.error) == ([4.0], "ZeroDivisionError: no luck")
    assert late.record(ours)["over_ours"] == [2, 2, 2]
    assert (gone.seconds, gone.error) == ([], "ValueError: not today")
    assert ours.record(gone)["over_ours"] is None
    assert ("", "late", 2) not in clock.ran
    assert not any(name == "absent" for _, name, _ in clock.ran)


def raised(error: Exception) -> tuple[float, None]:
    raise error


def test_errors_of_a_warm_up_are_ignored_and_others_raised_unless_told_to_keep_going(clock: Clock) -> None:
    early = clock.contestant("", "early", [1.0], fails=-1)
    interleave({"": [early]}, 1, keep_going=True)
    assert (early.seconds, early.error) == ([1.0], None)
    with pytest.raises(ZeroDivisionError):
        interleave({"": [clock.contestant("", "late", [1.0], fails=0)]}, 1)
