"""Runs side by side: the same bits as alone, whose turn it is, and the seconds of training alone."""

from __future__ import annotations

import json
import signal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from atlas import bench
from atlas.bench.race import Runner, Stopwatch, lap, race
from atlas.bench.race_report import TIME_MARKERS, laps, race_markdown, race_report, race_rows
from atlas.cli.bench import app
from atlas.config import override
from atlas.errors import Interrupted, UsageError
from atlas.reproduce import preset
from atlas.training import RunConfig, train
from atlas.training.folder import RunFolder
from atlas.training.ranks import Ranks

EPOCHS, BATCH, TRAINED = 3, 8, 40
STEPS = TRAINED // BATCH
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


def runner(name: str, data: str, folder: Path) -> Runner:
    table = preset.load_preset(name)[1]
    for key, value in {**SMALL, "data": data}.items():
        table = override(table, key, value)
    return Runner(RunConfig.of(table), folder / name)


@pytest.fixture
def both(data: str, tmp_path: Path) -> list[Runner]:
    return [runner(name, data, tmp_path / "raced") for name in ("demo-adv-1", "demo-atlas-1")]


def metrics(folder: Path) -> bytes:
    return RunFolder(folder).metrics.read_bytes()


def test_a_raced_run_is_bit_for_bit_the_run_alone(both: list[Runner], tmp_path: Path) -> None:
    seen: list[str] = []
    race(both, device="cpu", each=lambda runner: seen.append(runner.label))
    assert sorted(seen) == sorted(["adv-1", "atlas-1"] * EPOCHS)
    for each in both:
        alone = tmp_path / "alone" / each.label
        train(each.config, alone, device="cpu", progress=False)
        assert metrics(each.folder) == metrics(alone)
        assert (each.folder / "last.safetensors").exists()
        found = laps(each)
        assert [f["robust"] for f in found] == [
            r["val_robust"] for r in map(json.loads, metrics(alone).splitlines()) if r["kind"] == "epoch"
        ]
        assert all(a["seconds"] < b["seconds"] for a, b in pairwise(found))


def test_an_interrupted_run_goes_on_and_no_second_is_lost_or_counted_twice(
    both: list[Runner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = both[0]
    agree = Ranks.agree

    def after_two(self: Stopwatch, caught: int | None) -> int | None:
        return signal.SIGTERM if len(self.ended) == 2 else agree(self, caught)

    with monkeypatch.context() as patch:
        patch.setattr(Ranks, "agree", after_two)
        with pytest.raises(Interrupted):
            lap(each, device="cpu")
    assert laps(each) == []
    assert lap(each, device="cpu")
    (first,) = laps(each)
    timing = [json.loads(line) for line in RunFolder(each.folder).timing.read_text().splitlines()]
    pieces = [line for line in timing if line["event"] == "trained"]
    assert [(p["epoch"], p["steps"]) for p in pieces] == [(0, 2), (0, STEPS - 2)]
    assert first["seconds"] == pytest.approx(sum(p["training"] for p in pieces))
    race(both, device="cpu")
    train(each.config, tmp_path / "alone", device="cpu", progress=False)
    assert metrics(each.folder) == metrics(tmp_path / "alone")


def test_epochs_of_unknown_seconds_are_refused(both: list[Runner]) -> None:
    each = both[0]
    assert lap(each, device="cpu")
    timing = RunFolder(each.folder).timing
    timing.write_text("".join(line for line in timing.open() if "trained" not in line))
    with pytest.raises(UsageError, match=r"epoch 1 of .* seconds are not known"):
        laps(each)


def test_the_stopwatch_stops_before_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([1.0, 2.0, 2.5, 4.0])
    monkeypatch.setattr("atlas.bench.race.time.perf_counter", lambda: next(now))
    watch = Stopwatch()
    for _ in range(2):
        watch.share(8)
        watch.agree(None)
    assert watch.agree(None) is None, "after validation: there is no time left to ask for"
    assert watch.seconds == 3.0
    assert len(watch.ended) == 2


def test_those_behind_go_first_and_the_order_changes(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("demo-adv-1", "demo-trades-1", "demo-atlas-1")
    three = [runner(name, data, tmp_path) for name in names]
    done, order = {r.folder: 0 for r in three}, list[str]()
    done[three[2].folder] = 4
    monkeypatch.setattr(Runner, "epochs", property(lambda self: done[self.folder]))

    def stand_in(runner: Runner, **rest: object) -> bool:
        if done[runner.folder] == 12:
            return False
        done[runner.folder] += 1
        order.append(runner.method)
        return True

    monkeypatch.setattr("atlas.bench.race.lap", stand_in)
    race(three)
    assert set(done.values()) == {12}
    assert "atlas" not in order[:8]
    rounds = [tuple(order[i : i + 3]) for i in range(8, len(order), 3)]
    assert all(set(each) == {"adv", "trades", "atlas"} for each in rounds)
    assert len(set(rounds)) > 2


def test_a_mark_is_passed_at_the_end_of_the_first_epoch_above_it(
    both: list[Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = {"adv-1": [0.2, 0.6, 0.5, 0.7], "atlas-1": [0.1, 0.3, 0.95, 0.9]}

    def stand_in(runner: Runner) -> list[dict[str, float]]:
        return [
            {"seconds": 10.0 * (k + 1), "clean": 1.0, "robust": value}
            for k, value in enumerate(curves[runner.label])
        ]

    monkeypatch.setattr("atlas.bench.race_report.laps", stand_in)
    monkeypatch.setattr(RunFolder, "read_config", lambda self: both[0].config.table())
    report = race_report(both, [0.5, 0.8], bench.machine())
    assert [run["passed"] for run in report["runs"]] == [[20.0, None], [30.0, 30.0]]
    assert race_rows(report) == [
        ("adv-1", "4", "10.0", "20", "-", "70.0", "40"),
        ("atlas-1", "4", "10.0", "30", "30", "95.0", "30"),
    ]


def test_the_command_trains_prints_draws_and_goes_on(data: str, tmp_path: Path) -> None:
    page, times, figure = tmp_path / "page.md", tmp_path / "times.json", tmp_path / "new" / "time.svg"
    begin, end = TIME_MARKERS
    page.write_text(f"{begin}\nold\n{end}\n")
    words = ["time", "demo-adv-1", "demo-atlas-1", "--out", str(tmp_path / "raced"), "--device", "cpu"]
    for key, value in {**SMALL, "data": data, "training.schedule.epochs": 2}.items():
        words += ["--set", f"{key}={value}"]
    words += [
        "--precision",
        "craft",
        "--json",
        str(times),
        "--markdown",
        str(page),
        "--figure",
        str(figure),
        "--mark",
        "0",
    ]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    report = json.loads(times.read_text())
    assert [(run["method"], len(run["laps"])) for run in report["runs"]] == [("adv-1", 2), ("atlas-1", 2)]
    for run in report["runs"]:
        assert run["passed"] == [run["laps"][0]["seconds"]]
    assert page.read_text() == f"{begin}\n{race_markdown(report)}\n{end}\n"
    assert "pgd (objective margin, restarts 1, steps 2, step size 0.1)" in page.read_text()
    assert f"cnn-small on {data}, precision craft, validation on 8 images" in page.read_text()
    assert "seconds of training, without validation" in figure.read_text()
    again = CliRunner().invoke(app, words, catch_exceptions=False)
    assert again.exit_code == 0
    assert json.loads(times.read_text())["runs"] == report["runs"], "all was done already"


def test_two_runs_of_one_name_are_refused(tmp_path: Path) -> None:
    words = ["time", "demo-adv-1", "demo-adv-1", "--out", str(tmp_path)]
    with pytest.raises(UsageError, match="one name"):
        CliRunner().invoke(app, words, catch_exceptions=False)
