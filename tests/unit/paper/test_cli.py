"""`atlas reproduce` as a person meets it: lists, dry runs, mistakes, several seeds, and a kill on the way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atlas_paper.artefacts import ARTEFACTS

Atlas = Callable[..., int]
Smoke = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "ARTEFACT is missing"),
        (("table1-mnst",), "unknown artefact 'table1-mnst' (did you mean 'table1-mnist'?)"),
        (("table1-mnist", "--scale", "gpu"), "unknown scale 'gpu'"),
        (("table1-mnist", "--version", "best"), "unknown version 'best'"),
        (("table1-mnist", "--rows", "adv-1,nothing"), "has no row 'nothing'; choose from: jac, adv-1"),
        (("table1-mnist", "--network", "resnet"), "unknown network 'resnet'"),
        (("table1-mnist", "--seeds", "0"), "seeds must be 1 to 10, got 0"),
        (("table1-mnist", "--runs", "nowhere"), "--runs nowhere: no such folder"),
        (("tradesjac", "--network", "cnn"), "for MNIST"),
        (("five-step-adv", "--attack-dtype", "float8"), "float8"),
    ],
)
def test_mistakes_are_named_and_nothing_is_run(
    atlas: Atlas,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    words: str,
) -> None:
    assert atlas("reproduce", *options) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_list_names_every_artefact_with_its_cost(
    atlas: Atlas, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("atlas.cli.console.console.width", 80)
    assert atlas("reproduce", "--list") == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
    for name, artefact in ARTEFACTS.items():
        assert artefact.of in lines[name]
        assert len(re.findall(r"\d (?:s|min|h)\b", lines[name])) == 3
    assert "estimated" in text
    assert not list(tmp_path.iterdir())


def test_a_dry_run_lists_what_is_missing(
    smoke: Smoke,
    atlas: Atlas,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    smoke("alpha-sweep")
    monkeypatch.setattr("atlas.cli.console.console.width", 200)
    capsys.readouterr()
    words = ("reproduce", "alpha-sweep", "--scale", "smoke", "--workspace", workspace, "--dry-run")
    assert atlas(*words, "--seeds", "2") == 0
    text = capsys.readouterr().out
    first = [line for line in text.splitlines() if "seed 0" in line]
    second = [line for line in text.splitlines() if "seed 1" in line]
    assert len(first) == len(second) == 4
    assert all(" finished " in line for line in first)
    assert all("not begun" in line for line in second)
    assert "missing: 4 trainings and 4 evaluations" in text
    assert "alpha-sweep at scale smoke, from nothing and for one seed: about" in text


def test_a_figure_is_told_in_numbers_that_fit_a_terminal(
    smoke: Smoke,
    atlas: Atlas,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    summary = smoke("collapse")["tables"]["summary"]
    monkeypatch.setattr("atlas.cli.console.console.width", 80)
    capsys.readouterr()
    words = ("reproduce", "collapse", "--scale", "smoke", "--workspace", workspace, "--finished")
    assert atlas(*words) == 0
    text = capsys.readouterr().out
    assert "…" not in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for column, cell in zip(summary["columns"][4:], summary["rows"][0][4:], strict=True):
        assert f"{column} {cell if isinstance(cell, str) else cell['text']}" in lines


def test_several_seeds(smoke: Smoke, workspace: Path) -> None:
    whole = smoke("jac-sweep", "--seeds", "2", "--rows", "cifar10-*")
    rows = [row for row in whole["rows"] if row["task"] == "cifar10"]
    for row in rows:
        cell = row["cells"]["clean"]
        assert [seed["seed"] for seed in cell["seeds"]] == [0, 1]
        assert cell["ours"] == pytest.approx(50 * sum(seed["rate"] for seed in cell["seeds"]))
        assert len({seed["config_hash"] for seed in cell["seeds"]}) == 2
    page = (workspace / "results/jac-sweep-smoke-2-seeds/jac-sweep.md").read_text()
    assert "its numbers are no result" in page
    assert "the mean of 2 seeds" in page
    assert "not asked for" in page, "CIFAR-100 has no second seed"
    assert page.rstrip().endswith("--runs: atlas reproduce jac-sweep --scale smoke --seeds 2")


# --- killed on the way ---

OPTIONS = ["--scale", "smoke", "--rows", "*relative_step=1.25", "--workspace", "ws"]
COMMAND = [sys.executable, "-m", "atlas", "reproduce", "step-size", *OPTIONS]


def start(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(COMMAND, cwd=folder, env=environment, stdout=subprocess.DEVNULL)


def numbers(whole: dict[str, Any]) -> dict[str, Any]:
    """k of n in every cell."""
    return {
        row["key"]: {c: [(s["k"], s["n"]) for s in cell["seeds"]] for c, cell in row["cells"].items()}
        for row in whole["rows"]
    }


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 90
    while process.poll() is None and not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.timeout(300)
def test_killed_and_stopped_it_resumes_to_the_same_numbers(
    smoke: Smoke, workspace: Path, tmp_path: Path
) -> None:
    whole = smoke("step-size")
    place = tmp_path / "ws"
    results = place / "results/step-size-smoke/step-size.json"
    first = start(tmp_path)
    until(lambda: bool(list(place.glob("runs/*/state.safetensors"))), first)
    first.kill()
    assert first.wait(timeout=20) == -signal.SIGKILL
    assert not results.exists()
    second = start(tmp_path)
    until(lambda: bool(list(place.glob("evaluations/*/*/summary.json"))), second)
    second.terminate()
    assert second.wait(timeout=90) == 128 + signal.SIGTERM
    assert json.loads(results.read_text())["missing"], "what is there is written"
    third = start(tmp_path)
    assert third.wait(timeout=100) == 0
    mine = json.loads(results.read_text())
    asked = [row["key"] for row in mine["rows"] if row["key"].endswith("relative_step=1.25")]
    assert len(asked) == 2
    for key in asked:
        assert numbers(mine)[key] == numbers(whole)[key]
    logs = {path.read_bytes() for path in place.glob("runs/*/metrics.jsonl")}
    assert logs <= {path.read_bytes() for path in workspace.glob("runs/*/metrics.jsonl")}
