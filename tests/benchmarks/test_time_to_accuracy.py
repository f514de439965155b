"""`python -m benchmarks time`: the same bits as trained alone, and the seconds of training alone."""

from __future__ import annotations

import json
import signal
from argparse import Namespace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from atlas import presets
from atlas.config import override
from atlas.errors import Interrupted, UsageError
from atlas.machine import machine
from atlas.runs import Record, Run
from atlas.training import RunConfig, train
from benchmarks import time_to_accuracy
from benchmarks.command import main
from benchmarks.tables import TextTable, markdown
from benchmarks.time_to_accuracy import Stopwatch, TimedRun, blocks, report_of

EPOCHS, BATCH, TRAINED = 3, 8, 40
STEPS = TRAINED // BATCH
OPTIONS = Namespace(root=None, device="cpu")
SMALL = {
    "training.batch_size": BATCH,
    "training.schedule.epochs": EPOCHS,
    "training.schedule.ramp_epochs": 1,
    "training.validation.size": 8,
    "training.validation.attack.steps": 2,
}


@pytest.fixture
def data(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    x = rng.random((TRAINED + 8, 1, 8, 8), dtype=np.float32)
    path = tmp_path / "mine.npz"
    np.savez(path, x_train=x, y_train=np.arange(len(x)) % 10, x_test=x[:4], y_test=np.arange(4))
    return str(path)


def timed_run(name: str, data: str, folder: Path) -> TimedRun:
    table = presets.load_preset(name)[1]
    for key, value in {**SMALL, "data": data}.items():
        table = override(table, key, value)
    return TimedRun(RunConfig.of(table), folder / name)


@pytest.fixture
def both(data: str, tmp_path: Path) -> list[TimedRun]:
    return [timed_run(name, data, tmp_path / "timed") for name in ("demo-adv-1", "demo-atlas-1")]


def metrics(folder: Path) -> bytes:
    return Run(folder).metrics_path.read_bytes()


def test_an_interrupted_run_resumes_and_no_second_is_lost_or_counted_twice(
    both: list[TimedRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = both[0]
    measure = Stopwatch.__call__

    def kill_after_two(self: Stopwatch, record: Record) -> None:
        measure(self, record)
        if self.steps == 2:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Stopwatch, "__call__", kill_after_two)
        with pytest.raises(Interrupted):
            each.turn(OPTIONS, 0)
    assert each.curve() == []
    each.turn(OPTIONS, 0)
    (first,) = each.curve()
    timing = [json.loads(line) for line in Run(each.folder).timing_path.read_text().splitlines()]
    pieces = [line for line in timing if line["event"] == "trained"]
    assert [(p["epoch"], p["steps"]) for p in pieces] == [(0, 2), (0, STEPS - 2)]
    assert first["seconds"] == pytest.approx(sum(p["training"] for p in pieces))
    for epoch in range(EPOCHS):  # of which the first is finished
        each.turn(OPTIONS, epoch)
    train(each.config, tmp_path / "alone", device="cpu", progress=False)
    assert metrics(each.folder) == metrics(tmp_path / "alone")
    assert all(a["seconds"] < b["seconds"] for a, b in pairwise(each.curve()))
    lines = map(json.loads, metrics(each.folder).splitlines())
    robust = [line["val_robust"] for line in lines if line["kind"] == "epoch"]
    assert [epoch["robust"] for epoch in each.curve()] == robust


def test_epochs_of_unknown_seconds_are_refused(both: list[TimedRun]) -> None:
    each = both[0]
    each.turn(OPTIONS, 0)
    timing = Run(each.folder).timing_path
    timing.write_text("".join(line for line in timing.open() if "trained" not in line))
    with pytest.raises(UsageError, match=r"the seconds of epoch 1 of .* are not known"):
        each.curve()


def test_the_stopwatch_stops_before_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([2.0, 4.0])
    monkeypatch.setattr(time_to_accuracy.time, "perf_counter", lambda: next(now))
    watch = Stopwatch()
    for seconds in (1.0, 1.5):
        watch({"seconds": seconds})
    assert (watch.seconds, watch.steps) == (3.0, 2), "with the half second between the steps"


def test_a_mark_is_passed_at_the_end_of_the_first_epoch_above_it(
    both: list[TimedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = {"adv-1": [0.2, 0.6, 0.5, 0.7], "atlas-1": [0.1, 0.3, 0.95, 0.9]}

    def stand_in(run: TimedRun) -> list[dict[str, float]]:
        found = enumerate(curves[run.label], 1)
        return [{"seconds": 10.0 * k, "clean": 1.0, "robust": value} for k, value in found]

    monkeypatch.setattr(TimedRun, "curve", stand_in)
    monkeypatch.setattr(Run, "config", both[0].config.table())
    report = report_of(both, [0.5, 0.8], machine())
    assert [run["passed"] for run in report["runs"]] == [[20.0, None], [30.0, 30.0]]
    table = blocks(report)[-1]
    assert isinstance(table, TextTable)
    assert table.rows == [
        ("adv-1", "4", "10.0", "20", "-", "70.0", "40"),
        ("atlas-1", "4", "10.0", "30", "30", "95.0", "30"),
    ]


def test_the_command_trains_in_turns_prints_draws_and_resumes(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times, figure = tmp_path / "times.json", tmp_path / "new" / "time.svg"
    words = ["time", "demo-adv-1", "demo-atlas-1", "--out", str(tmp_path / "timed"), "--device", "cpu"]
    for key, value in {**SMALL, "data": data, "training.schedule.epochs": 2}.items():
        words += ["--set", f"{key}={value}"]
    words += ["--precision", "craft", "--mark", "0", "--json", str(times)]
    words += ["--figure", str(figure)]
    main(words)
    report, out = json.loads(times.read_text()), capsys.readouterr().out
    assert [(run["method"], len(run["laps"])) for run in report["runs"]] == [("adv-1", 2), ("atlas-1", 2)]
    assert all(run["passed"] == [run["laps"][0]["seconds"]] for run in report["runs"])
    turns = [line.split(":")[0].split(", epoch ") for line in out.splitlines() if ", epoch " in line]
    assert [epoch for _, epoch in turns] == ["1", "1", "2", "2"]
    assert "pgd (objective margin, restarts 1, steps 2, step size 0.1)" in markdown(blocks(report))
    assert f"cnn-small on {data}, precision craft, validation on 8 images" in markdown(blocks(report))
    assert "seconds of training, without validation" in figure.read_text()
    main(words)
    assert json.loads(times.read_text())["runs"] == report["runs"], "all was done already"


def test_two_runs_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["time", "demo-adv-1", "demo-adv-1", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "different names" in capsys.readouterr().err
