"""Events, read back by TensorBoard itself."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from atlas.training.log import Events


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def write(folder: Path, start: int, values: dict[int, float]) -> None:
    events = Events(folder, start)
    for step, value in values.items():
        events.scalar("epoch/loss", value, step)
    events.file.close()


def test_tensorboard_reads_them(tmp_path: Path) -> None:
    write(tmp_path / "t", 0, {1: 3.0, 2: 2.0})
    assert read(tmp_path / "t") == {"epoch/loss": [(1, 3.0), (2, 2.0)]}


def test_steps_that_are_done_again_count_once_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**9, 0, -(10**6)))  # a clock that runs backwards
    monkeypatch.setattr("time.time", lambda: float(next(clock)))
    write(tmp_path, 0, {1: 3.0, 2: 9.0, 3: 9.0})
    write(tmp_path, 2, {2: 2.0, 3: 1.0})
    write(tmp_path, 4, {4: 0.5})
    assert read(tmp_path) == {"epoch/loss": [(1, 3.0), (2, 2.0), (3, 1.0), (4, 0.5)]}


def test_their_names_tell_nothing_of_the_machine(tmp_path: Path) -> None:
    for _ in range(2):
        write(tmp_path, 0, {})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["events.out.tfevents.000001", "events.out.tfevents.000002"]
    assert all(socket.gethostname().encode() not in path.read_bytes() for path in tmp_path.iterdir())
