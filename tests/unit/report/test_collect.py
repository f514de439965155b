"""What a report finds in folders: whole ones, moved ones, and ones that something happened to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from atlas.errors import AtlasError, CheckpointError, UsageError
from atlas.report.collect import collect
from tests.unit.report import runs


@pytest.fixture
def run(two_runs: list[Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_runs[0], tmp_path / "elsewhere" / "first"))


def test_a_moved_run_is_whole(run: Path) -> None:
    (found,) = collect([run])
    assert (found.name, len(found.epochs), list(found.evaluations)) == ("first", 3, ["quick-0"])
    assert found.seconds > 0
    assert found.best is not None
    assert found.best.robust == max(epoch.robust for epoch in found.epochs)
    assert found.collapse is None
    assert found.notes == ()
    summary = json.loads((run / "evaluations/quick-0/summary.json").read_text())
    assert found.evaluations["quick-0"].summary() == summary


def test_a_collapse_is_seen(run: Path) -> None:
    runs.collapse(run)
    (found,) = collect([run])
    assert found.collapse is not None
    assert found.collapse.number == 3


def test_runs_of_one_name_are_told_apart(run: Path, two_runs: list[Path]) -> None:
    names = [found.name for found in collect([run, two_runs[0], run])]
    assert names == ["elsewhere/first", f"{two_runs[0].parent.name}/first"]


def test_a_run_without_evaluation_or_weights_says_so(run: Path) -> None:
    shutil.rmtree(run / "evaluations")
    (run / "best.safetensors").unlink()
    (found,) = collect([run])
    assert found.model is None
    assert "nothing can be attacked" in found.notes[0]
    assert "atlas evaluate" in found.notes[1]


def test_a_training_that_is_not_over_broke_off_or_was_changed_says_so(run: Path) -> None:
    (run / "last.safetensors").unlink()
    (run / "state.safetensors").write_bytes(b"")
    assert collect([run])[0].notes == ("training has not come to its end",)
    (run / "not-finite.json").write_text("{}")
    assert collect([run])[0].notes == ("training broke off: its numbers were not finite",)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"changed_from": ["0123abcd"]}))
    assert "changed on the way, from those of hash 0123abcd" in collect([run])[0].notes[0]


def test_evaluations_of_other_weights_or_without_end_are_left_out(run: Path, two_runs: list[Path]) -> None:
    shutil.copytree(two_runs[1] / "evaluations/quick-0", run / "evaluations/other")
    shutil.copytree(two_runs[0] / "evaluations/quick-0", run / "evaluations/half")
    (run / "evaluations/half/summary.json").unlink()
    (found,) = collect([run])
    assert list(found.evaluations) == ["quick-0"]
    assert any("half has not come to its end" in note for note in found.notes)
    assert any("other is of other weights" in note for note in found.notes)


def test_evaluations_beside_the_run_are_found_by_its_weights(run: Path, two_runs: list[Path]) -> None:
    (run / "evaluations/quick-0").rename(run.parent / "apart")
    shutil.copytree(two_runs[1] / "evaluations/quick-0", run.parent / "stranger")
    (run.parent / "broken").mkdir()
    (run.parent / "broken/summary.json").write_text("{")
    (found,) = collect([run])
    assert list(found.evaluations) == ["apart"]


def test_evaluations_of_reproduce_are_found(run: Path) -> None:
    """WORKSPACE/runs/NAME has them in WORKSPACE/evaluations/NAME."""
    moved = run.parent / "workspace/runs/name"
    shutil.copytree(run, moved)
    there = run.parent / "workspace/evaluations/name"
    there.mkdir(parents=True)
    (moved / "evaluations/quick-0").rename(there / "un-t-1234")
    (found,) = collect([moved])
    assert list(found.evaluations) == ["un-t-1234"]
    assert not any("not evaluated" in note for note in found.notes)


def test_a_torn_last_line_is_no_loss_and_a_torn_middle_is_an_error(run: Path) -> None:
    metrics = run / "metrics.jsonl"
    text = metrics.read_text()
    metrics.write_text(text[:-20])
    assert len(collect([run])[0].epochs) == 2
    metrics.write_text("{ torn\n" + text)
    with pytest.raises(CheckpointError, match="damaged in line 1"):
        collect([run])


@pytest.mark.parametrize("value", ["<b>", None, True, [1]])
def test_what_is_no_number_is_refused(run: Path, value: object) -> None:
    record = {"kind": "epoch", "epoch": 0, "val_robust": value, "val_clean": 1.0, "jacobian": 1.0}
    (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(CheckpointError, match="val_robust is"):
        collect([run])


def test_folders_that_are_no_runs(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run was given"):
        collect([])
    with pytest.raises(UsageError, match=r"not the folder.*did you mean elsewhere/\*\? It has first"):
        collect([tmp_path / "elsewhere"])
    with pytest.raises(UsageError, match=r"has no config\.json"):
        collect([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b'{"config": {}, "hash": "x"}'),
        ("best.safetensors", b"\0" * 40),
        ("evaluations/quick-0/summary.json", b'{"attacks": {}, "flags": [], "about": {}}'),
        ("evaluations/quick-0/summary.json", b'{"attacks": [], "flags": [{"name": 1}], "about": 3}'),
        ("evaluations/quick-0/clean.npz", b"PK"),
        ("timing.jsonl", b'{"seconds": "long"}\n'),
    ],
)
def test_damage_is_one_of_our_errors(run: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    with pytest.raises(AtlasError):
        collect([run])


def test_the_commit_is_known_where_it_was_written_down(run: Path) -> None:
    assert collect([run])[0].commit is None
    (run / "origin.json").write_text('{"commit": "0123456789ab+"}')
    assert collect([run])[0].commit == "0123456789ab+"
    (run / "origin.json").write_text("[[")
    assert collect([run])[0].commit is None
