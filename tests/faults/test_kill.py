"""A run that is killed, signalled or damaged continues to the same bits, or says why it cannot."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest

from atlas.files import part_of
from tests.faults import runs


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small task and an undisturbed run of it, `whole`."""
    folder = tmp_path_factory.mktemp("task")
    runs.make_task(folder)
    runs.train(folder, "whole")
    return folder


def test_the_task_is_learnt(task: Path) -> None:
    records = [json.loads(line) for line in (task / "whole/metrics.jsonl").read_text().splitlines()]
    assert max(r["val_robust"] for r in records if r["kind"] == "epoch") > 0.4


def test_sigkill_at_random_moments_then_resume_gives_the_same_bits(task: Path) -> None:
    moments = random.Random(0)
    out = task / "killed"
    process = runs.start(task, "train", "task.toml", "--out", "killed")
    kills = 0
    for _ in range(4):
        size = out.joinpath("metrics.jsonl").stat().st_size if kills else 0
        runs.wait_for_metrics(out, process, size)
        time.sleep(moments.uniform(0, 0.4))
        kills += process.poll() is None
        process.kill()
        process.wait(timeout=10)
        process = runs.start(task, "train", "--resume", "killed")
    runs.finish(process)
    assert kills >= 3, "the run ended before it could be killed often enough"
    assert runs.outcome(out) == runs.outcome(task / "whole")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGUSR1, 138)],
)
def test_a_signal_saves_and_exits(task: Path, number: signal.Signals, code: int) -> None:
    name = f"signal-{code}"
    process = runs.start(task, "train", "task.toml", "--out", name)
    runs.wait_for_metrics(task / name, process, 0)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert "everything is saved" in output
    runs.finish(runs.start(task, "train", "--resume", name))
    assert runs.outcome(task / name) == runs.outcome(task / "whole")


def stopped(task: Path, name: str) -> Path:
    """A run that was stopped half-way, with two states saved."""
    process = runs.start(task, "train", "task.toml", "--out", name)
    runs.wait_for_metrics(task / name, process, 1500)
    process.terminate()
    assert process.wait(timeout=60) == 143
    assert (task / name / "state.previous.safetensors").exists()
    return task / name


def test_a_changed_configuration_is_refused_unless_allowed(task: Path) -> None:
    stopped(task, "changed")
    process = runs.start(task, "train", "--resume", "changed", "--set", "method.alpha=1e-2")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "method.alpha: 0.001 -> 0.01" in output
    change = ("--set", "method.alpha=1e-2", "--allow-changes")
    runs.finish(runs.start(task, "train", "--resume", "changed", *change))


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("damage", [flip_a_bit, truncate])
def test_a_damaged_state_falls_back_to_the_one_before(task: Path, damage: object) -> None:
    run = stopped(task, f"damaged-{damage.__name__}")  # type: ignore[attr-defined]
    damage(run / "state.safetensors")  # type: ignore[operator]
    output = runs.finish(runs.start(task, "train", "--resume", run.name))
    assert "state.safetensors" in output
    assert "resuming from the state before" in output
    assert runs.outcome(run) == runs.outcome(task / "whole")


def test_no_good_state_left_is_exit_4(task: Path) -> None:
    run = stopped(task, "ruined")
    flip_a_bit(run / "state.safetensors")
    truncate(run / "state.previous.safetensors")
    for _ in ("at once", "and again: it must not start over in silence"):
        process = runs.start(task, "train", "--resume", "ruined")
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 4, output
        assert "holds no good state, only state.damaged, state.previous.damaged" in output


def test_a_state_of_another_model_is_exit_4(task: Path) -> None:
    stopped(task, "other")
    source = (task / "their_model.py").read_text()
    (task / "wide_model.py").write_text(source.replace("8, 3, 2, 1", "16, 3, 2, 1").replace("(8", "(16"))
    change = ("--set", "model=wide_model:small", "--allow-changes")
    process = runs.start(task, "train", "--resume", "other", *change)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 4, output


def test_other_training_data_is_refused(task: Path) -> None:
    stopped(task, "moved")
    import numpy as np

    with np.load(task / "task.npz") as old:
        np.savez(task / "other.npz", x=old["x"][::-1], y=old["y"][::-1])
    process = runs.start(task, "train", "--resume", "moved", "--set", "data=other.npz", "--allow-changes")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 4, output
    assert "same data" in output


def test_leftovers_of_a_killed_write_are_cleared(task: Path) -> None:
    run = stopped(task, "leftover")
    part_of(run / "state.safetensors").write_bytes(b"half")
    runs.finish(runs.start(task, "train", "--resume", "leftover"))
    assert not list(run.glob(".*.part"))
