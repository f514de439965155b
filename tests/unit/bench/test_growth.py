"""Growth with batch and width: who is timed when, what is made of it, and a neighbour that works as told."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atlas import bench
from atlas.bench.growth import Growth, Point, grow, growths
from atlas.bench.growth_report import (
    GROWTH_MARKERS,
    growth_markdown,
    growth_rows,
    growth_summary,
    growth_words,
)
from atlas.bench.neighbour import LOOP, neighbour
from atlas.cli.bench import app
from atlas.errors import UsageError

STAT = Path("/proc/self/stat")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.skipif(not STAT.exists(), reason="needs /proc")
def test_the_neighbour_works_when_told_and_waits_when_told() -> None:
    with neighbour() as beside:
        pid = beside.process.pid
        spent = []
        for busy in (False, True, False):
            beside.work(busy)
            before = cpu_seconds(pid)
            deadline = time.monotonic() + 20
            while busy and cpu_seconds(pid) < before + 0.1 and time.monotonic() < deadline:
                time.sleep(0.02)
            if not busy:
                time.sleep(0.2)
            spent.append(cpu_seconds(pid) - before)
    assert spent[1] >= 0.1
    assert max(spent[0], spent[2]) <= 0.05
    assert beside.process.returncode is not None, "it is gone"


def test_the_neighbour_goes_when_its_pipe_closes() -> None:
    """As it does when the process that started it is killed."""
    done = subprocess.run(["python3", "-c", LOOP], input=b"1", capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, b"1")


class Clock:
    """Moves when a step is made: a second an image, three beside a busy neighbour."""

    def __init__(self) -> None:
        self.now, self.busy = 0.0, False
        self.made: list[tuple[str, int, bool]] = []

    def work(self, busy: bool) -> None:
        self.busy = busy

    def step(self, growth: Growth) -> Callable[[], None]:
        def run() -> None:
            self.made.append((growth.case.label, growth.point.batch, self.busy))
            self.now += growth.point.batch * (3 if self.busy else 1)

        return run


def measured(clock: Clock, repeats: int, monkeypatch: pytest.MonkeyPatch) -> list[Growth]:
    points = [Point("cnn-small", (1, 8, 8), size) for size in (2, 4, 8)]
    todo = growths(points, [bench.case("adv-1"), bench.case("atlas-1")])
    monkeypatch.setattr("atlas.bench.growth.steps", lambda todo, *rest: [clock.step(g) for g in todo])
    grow(todo, repeats, clock, clock=lambda: clock.now)  # type: ignore[arg-type]
    return todo


def test_every_step_is_timed_in_both_ways_one_right_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    todo = measured(clock, 4, monkeypatch)
    assert len(clock.made) == 2 * 6 * (4 + bench.WARM_UP)
    assert not clock.busy, "and it is left in peace"
    couples = list(zip(clock.made[::2], clock.made[1::2], strict=True))
    for one, other in couples:
        assert one[:2] == other[:2]
        assert one[2] != other[2]
    assert {one[2] for one, _ in couples} == {True, False}, "now this one first, now that"
    rounds = [tuple(one[:2] for one, _ in couples[i : i + 6]) for i in range(0, len(couples), 6)]
    assert len(set(rounds)) == len(rounds)
    for growth in todo:
        assert growth.quiet == [growth.point.batch] * 4
        assert growth.busy == [3 * growth.point.batch] * 4


def test_growth_in_proportion_is_an_even_time_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    records = growth_summary(measured(Clock(), 2, monkeypatch))
    assert growth_rows("batch", records)[0] == (
        *("adv-1", "cnn-small", "2", "2000.0", "1e+03", "3.00 [3.00, 3.00]"),
    )
    assert growth_words("batch", records)[1] == (
        "atlas-1: ms an image, largest / smallest 1.00; its largest rise from one line to the next 1.00; "
        "busy / quiet at most 3.00."
    )


def test_a_cliff_is_told() -> None:
    found = growths([Point("cnn-small", (1, 8, 8), size) for size in (2, 4, 8)], [bench.case("adv-1")])
    for growth, seconds in zip(found, (4.0, 4.0, 16.0), strict=True):  # 2, 1 and 2 an image
        growth.quiet, growth.busy = [seconds], [seconds * (1 + seconds / 16)]
    (words,) = growth_words("batch", growth_summary(found))
    assert "largest / smallest 2.00; its largest rise from one line to the next 2.00" in words
    assert words.endswith("busy / quiet at most 2.00.")


def test_flops_are_those_of_the_network_by_hand() -> None:
    """cnn-small on 8x8, one image: conv 16 on 4x4, conv 32 on 2x2, fc 100 and 10, two FLOPs a product."""
    forward = 2 * (16 * 16 * 16 + 4 * 32 * 16 * 16 + 128 * 100 + 100 * 10)
    (one, two) = growths([Point("cnn-small", (1, 8, 8), n) for n in (8, 16)], [bench.case("adv-1")])
    assert two.flops == pytest.approx(2 * one.flops)
    # One-step ADV is 5 forward passes, less the gradient of the images in its update.
    assert one.flops == pytest.approx(8 * 5 * forward, rel=0.06)


def test_the_command_measures_prints_draws_and_writes(tmp_path: Path) -> None:
    page, data, figure = tmp_path / "page.md", tmp_path / "times.json", tmp_path / "new" / "growth.svg"
    begin, end = GROWTH_MARKERS
    page.write_text(f"{begin}\nold\n{end}\n")
    words = ["growth", "--model", "cnn-small", "--shape", "1x8x8", "--batch", "2", "--batch", "8"]
    words += ["--width", "wrn-10-1", "--width", "wrn-10-2", "--width-batch", "2", "--repeats", "1"]
    words += ["--method", "adv-1", "--json", str(data), "--markdown", str(page), "--figure", str(figure)]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    axes = json.loads(data.read_text())["axes"]
    assert [(r["model"], r["batch"]) for r in axes["batch"]] == [("cnn-small", 2), ("cnn-small", 8)]
    assert [(r["model"], r["batch"]) for r in axes["width"]] == [("wrn-10-1", 2), ("wrn-10-2", 2)]
    assert axes["width"][1]["flops"] > 3 * axes["width"][0]["flops"]
    assert all(len(r["seconds"][way]) == 1 for r in axes["batch"] for way in ("quiet", "busy"))
    assert page.read_text() == f"{begin}\n{growth_markdown(json.loads(data.read_text()))}\n{end}\n"
    assert "images a step, cnn-small" in figure.read_text()
    assert "busy / quiet at most" in " ".join(result.output.split())


def test_a_page_without_markers_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no place for the table"):
        CliRunner().invoke(app, ["growth", "--markdown", str(tmp_path / "no.md")], catch_exceptions=False)
