"""`python -m benchmarks growth`: every step is timed beside a busy process and alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atlas.machine import machine
from benchmarks import growth
from benchmarks.command import main
from benchmarks.growth import blocks
from benchmarks.tables import TextTable
from benchmarks.timing import WARM_UP


def test_the_command_measures_prints_draws_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[bool] = []

    @contextmanager
    def busy_process() -> Iterator[Callable[[bool], None]]:
        yield told.append

    monkeypatch.setattr(growth, "busy_process", busy_process)
    data, figure = tmp_path / "times.json", tmp_path / "new" / "growth.svg"
    words = ["growth", "--model", "cnn-small", "--shape", "1x8x8", "--batch", "2", "--batch", "8"]
    words += ["--width", "wrn-10-1", "--width", "wrn-10-2", "--width-batch", "2", "--repeats", "1"]
    words += ["--method", "adv-1", "--json", str(data), "--figure", str(figure)]
    main(words)
    report = json.loads(data.read_text())
    axes = report["axes"]
    assert [(r["model"], r["batch"]) for r in axes["batch"]] == [("cnn-small", 2), ("cnn-small", 8)]
    assert [(r["model"], r["batch"]) for r in axes["width"]] == [("wrn-10-1", 2), ("wrn-10-2", 2)]
    assert axes["batch"][1]["flops"] == 4 * axes["batch"][0]["flops"]
    assert axes["width"][1]["flops"] > 3 * axes["width"][0]["flops"]
    assert all(len(r["seconds"][way]) == 1 for r in axes["batch"] for way in ("quiet", "busy"))
    turns = (WARM_UP + 1) * 4
    assert (told.count(True), len(told)) == (turns, 4 * turns)
    assert not any(told[1::2]), "the other process waits after every step"
    assert "images per step, cnn-small" in figure.read_text()
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_growth_in_proportion_is_a_constant_cost() -> None:
    record = {"method": "adv-1", "model": "m"}
    record_of = [{**record, "batch": n, "flops": n * 10**9} for n in (2, 4, 16)]
    for r in record_of:
        r["seconds"] = {"quiet": [5e-3 * r["batch"]] * 3, "busy": [15e-3 * r["batch"]] * 3}
    page = blocks({"machine": machine(), "repeats": 3, "axes": {"batch": record_of, "width": record_of}})
    for table in page[1:]:
        assert isinstance(table, TextTable)
        assert [row[3:] for row in table.rows] == [
            (ms, "5", "3.00 [3.00, 3.00]") for ms in ("10.0", "20.0", "80.0")
        ]


def test_an_unknown_figure_format_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(growth, "measure", None)
    with pytest.raises(SystemExit) as ended:
        main(["growth", "--figure", "growth.gif"])
    assert ended.value.code == 2
    assert "figure format" in capsys.readouterr().err
