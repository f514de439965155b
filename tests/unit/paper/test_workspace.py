"""What is found, copied, marked, left out: runs in other places, unfinished, failed, collapsed, in use."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atlas.config import fingerprint
from atlas.errors import CheckpointError, LockError
from atlas.evaluation.evaluation_folder import EvaluationFolder
from atlas.files import locked
from atlas.runs import Run
from atlas.training import train
from atlas_paper import workspace as workspace_module
from atlas_paper.artefacts import ARTEFACTS
from atlas_paper.jobs import AttackSpec, Job
from atlas_paper.request import Request
from atlas_paper.workspace import Workspace, in_use

Atlas = Callable[..., int]
Smoke = Callable[..., dict[str, Any]]
NAME = "ablation-cifar10"
ASKED = Request(ARTEFACTS[NAME], "smoke")
RUN = ASKED.run(ARTEFACTS[NAME].rows[0], 0)
JOB = Job("mine", RUN, ())


@pytest.fixture
def made(smoke: Smoke, workspace: Path) -> Path:
    """The shared workspace, with the artefact in it."""
    smoke(NAME)
    return workspace


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """A private workspace to damage: the artefact's runs and evaluations."""
    place, first = tmp_path / "mine", Workspace(made)
    for row in ARTEFACTS[NAME].rows:
        for part in ("runs", "evaluations"):
            whole = first.folder(part, ASKED.run(row, 0))
            shutil.copytree(whole, place / part / whole.name, dirs_exist_ok=True)
    shutil.copy(made / "timings.json", place)
    return place


def folder(workspace: Path, key: str, part: str = "runs") -> Path:
    (row,) = [row for row in ARTEFACTS[NAME].rows if row.key == key]
    return Workspace(workspace).folder(part, ASKED.run(row, 0))


@pytest.fixture
def finished(atlas: Atlas, copy: Path, quick_plots: None) -> Callable[..., tuple[dict[str, Any], str]]:
    """The artefact from what is finished in the copy: its JSON and its Markdown."""

    def write(*options: object) -> tuple[dict[str, Any], str]:
        words = ("reproduce", NAME, "--scale", "smoke", "--workspace", copy, "--finished", *options)
        assert atlas(*words) == 0
        place = copy / "results" / f"{NAME}-smoke"
        return json.loads((place / f"{NAME}.json").read_text()), (place / f"{NAME}.md").read_text()

    return write


def cells(whole: dict[str, Any], key: str) -> dict[str, Any]:
    (row,) = [row for row in whole["rows"] if row["key"] == key]
    return dict(row["cells"])


def test_the_machinery_knows_nothing_of_the_paper() -> None:
    """So that other tables of trainings and attacks can be built on it."""
    generic = {"jobs", "workspace", "cells"}
    for name in generic:
        source = Path(workspace_module.__file__).with_name(f"{name}.py").read_text()
        assert set(re.findall(r"^from atlas_paper\.(\w+)", source, re.MULTILINE)) < generic
        assert "from atlas_paper import" not in source


def test_a_collapsed_row_is_marked(finished: Any, copy: Path) -> None:
    metrics = folder(copy, "atlas-l-1") / "metrics.jsonl"
    lines = Run(metrics.parent).records
    epochs = [line for line in lines if line["kind"] == "epoch"]
    epochs[1]["collapse"] = True
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    whole, page = finished()
    marked = cells(whole, "atlas-l-1")["Multi-T"]
    assert marked["marks"] == ["collapsed"]
    assert f"{marked['ours']:.2f}, collapsed [" in page
    assert "one-step ATLAS-l, seed 0: collapsed in epoch 2; the numbers are of epoch" in page
    assert "collapsed" not in cells(whole, "adv-1")["Multi-T"]["marks"]


def test_a_failed_row_has_no_numbers(finished: Any, copy: Path) -> None:
    run = folder(copy, "atlas-l-1")
    (run / "last.safetensors").unlink()
    (run / "not-finite.json").write_text("{}")
    whole, page = finished()
    assert cells(whole, "atlas-l-1")["clean"]["ours"] is None
    assert "| ours | failed | failed |" in page
    assert "broke off" in page
    assert whole["missing"] == [
        "atlas-l-1 (seed 0: training failed after 3 epochs; to try again, remove its folder)"
    ]


def test_an_invalid_evaluation_has_no_number(finished: Any, copy: Path) -> None:
    (path,) = folder(copy, "atlas-l-1", "evaluations").glob("multi-t-*/summary.json")
    place = EvaluationFolder(path.parent)
    flags = [{"name": "random", "fatal": True, "message": "two looks, two answers"}]
    place.save_summary(place.load_summary() | {"flags": flags})
    whole, page = finished()
    assert cells(whole, "atlas-l-1")["Multi-T"]["ours"] is None
    assert cells(whole, "atlas-l-1")["Multi-T"]["reasons"] == ["random"]
    assert "invalid (random)" in page
    assert "two looks, two answers" in page
    against = [line[1] for line in whole["tables"]["paired"]["rows"]]
    assert "one-step ATLAS-l" not in against
    assert "one-step ATLAS-g" in against


def test_missing_rows_are_named_with_the_command(finished: Any, copy: Path) -> None:
    shutil.rmtree(folder(copy, "atlas-g-1"))
    shutil.rmtree(folder(copy, "atlas-l-1", "evaluations"))
    whole, page = finished()
    assert whole["missing"] == [
        "atlas-l-1 (seed 0: attacks not finished)",
        "atlas-g-1 (seed 0: training not begun)",
    ]
    assert f"--runs: atlas reproduce {NAME} --scale smoke" in page
    assert cells(whole, "atlas-g-1")["clean"]["ours"] is None
    assert cells(whole, "adv-1")["clean"]["ours"] is not None


def test_rows_that_were_not_asked_for_are_shown_where_they_are_there(finished: Any) -> None:
    whole, _ = finished("--rows", "adv-1")
    assert whole["missing"] == []
    assert cells(whole, "atlas-g-1")["clean"]["ours"] is not None


# --- runs in other places ---


def test_finished_runs_elsewhere_are_used_and_left_alone(made: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(made / "runs")
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(tmp_path)
    mine = Workspace(tmp_path / "empty", (tmp_path,))
    for row in ASKED.rows:
        run = ASKED.run(row, 0)
        found = mine.finished(run)
        assert found is not None
        assert json.loads((found / "config.json").read_text())["hash"] == run.hash
    assert Workspace(tmp_path / "empty").finished(ASKED.run(ASKED.rows[0], 0)) is None
    assert mine.finished(ASKED.run(ASKED.rows[0], 1)) is None, "another seed is another run"


def test_a_run_whose_settings_were_changed_on_the_way_is_not_used(made: Path, tmp_path: Path) -> None:
    shutil.copytree(Workspace(made).folder("runs", RUN), tmp_path / "other")
    mine = Workspace(tmp_path / "empty", (tmp_path / "other",))
    assert mine.finished(RUN) == tmp_path / "other"
    folder, other = Run(tmp_path / "other"), replace(RUN.config, model="cnn").table()
    folder.state_path.write_bytes(b"")
    folder.write_config(other, "run")
    folder.write_config(RUN.config.table(), "run")
    assert folder.changed_from == [RUN.hash, fingerprint(other)]
    assert Workspace(tmp_path / "empty", (tmp_path / "other",)).finished(RUN) is None


def test_a_run_that_was_changed_in_its_own_place_is_left_there_and_named(
    atlas: Atlas, finished: Any, copy: Path
) -> None:
    place = folder(copy, "adv-1")
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"changed_from": ["0123abcd"]}))
    before = snapshot(place)
    assert atlas("reproduce", NAME, "--scale", "smoke", "--workspace", copy, "--rows", "adv-1") == 0
    whole, _ = finished()
    words = "training changed on the way after 3 epochs; to try again, remove its folder"
    assert whole["missing"] == [f"adv-1 (seed 0: {words})"]
    assert snapshot(place) == before


def test_the_commit_is_that_of_this_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed copy in somebody's work tree has none."""
    copy = tmp_path / "theirs/.venv/lib/atlas_paper/workspace.py"
    copy.parent.mkdir(parents=True)
    shutil.copy(workspace_module.__file__, copy)
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        known = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", tmp_path / "theirs", *known, *words], check=True)
    monkeypatch.setattr(workspace_module, "__file__", str(copy))
    assert workspace_module.commit.__wrapped__() is None
    for words in (["add", "-f", "."], ["commit", "-q", "-m", "ours"]):
        subprocess.run(["git", "-C", tmp_path / "theirs", *known, *words], check=True)
    assert len(workspace_module.commit.__wrapped__()) == 12


def test_an_unfinished_run_elsewhere_is_copied_and_continues_there(made: Path, tmp_path: Path) -> None:
    """Also beside a copy that was cut off; one in use is not replaced."""
    other = begun(tmp_path / "other" / "some-name")
    before, said = snapshot(other), list[str]()
    mine = Workspace(tmp_path / "mine", (tmp_path / "other",), say=said.append)
    place = mine.folder("runs", RUN)
    shutil.copytree(other, place.with_name(f".{place.name}.part"))
    with locked(place), pytest.raises(LockError, match="trained by another process"):
        mine.train(JOB)
    mine.train(JOB)
    assert said == [f"mine: resuming {place}"]
    for name in ("metrics.jsonl", "best.safetensors", "last.safetensors"):
        assert (place / name).read_bytes() == (Workspace(made).folder("runs", RUN) / name).read_bytes()
    assert snapshot(other) == before
    assert not list(place.parent.glob(".*"))


def test_finished_evaluations_elsewhere_are_used(
    atlas: Atlas, made: Path, tmp_path: Path, quick_plots: None
) -> None:
    mine = tmp_path / "mine"
    words = ("--scale", "smoke", "--workspace", mine, "--runs", made, "--finished")
    assert atlas("reproduce", NAME, *words) == 0
    ours, first = (json.loads((w / f"results/{NAME}-smoke/{NAME}.json").read_text()) for w in (mine, made))
    assert ours["missing"] == [f"{row['key']} (seed 0: time per batch not measured)" for row in first["rows"]]
    for row in first["rows"]:
        assert cells(ours, row["key"])["Multi-T"] == row["cells"]["Multi-T"]
    assert not (mine / "runs").exists()
    assert not (mine / "evaluations").exists()


def begun(place: Path) -> Path:
    """A training that was stopped after its first epoch."""
    with pytest.raises(KeyboardInterrupt):
        train(RUN.config, place, on_epoch=interrupt, progress=False)
    return place


def test_a_run_that_was_killed_while_it_saved_is_not_thrown_away(tmp_path: Path) -> None:
    mine = Workspace(tmp_path / "mine", (tmp_path / "other",))
    begun(tmp_path / "other" / "older")
    run = Run(begun(mine.folder("runs", RUN)))
    run.state_path.replace(run.previous_path)
    found, state = mine.find(RUN)
    assert (found.path, state) == (run.path, "unfinished")


def test_a_damaged_evaluation_is_made_again(
    atlas: Atlas, finished: Any, copy: Path, quick_plots: None
) -> None:
    before, _ = finished()
    (path,) = folder(copy, "atlas-l-1", "evaluations").glob("multi-t-*/attack-*.npz")
    path.write_bytes(b"torn")
    without, _ = finished()
    assert without["missing"] == ["atlas-l-1 (seed 0: attacks not finished)"]
    assert atlas("reproduce", NAME, "--scale", "smoke", "--workspace", copy) == 0
    again, _ = finished()
    assert cells(again, "atlas-l-1")["Multi-T"]["ours"] == cells(before, "atlas-l-1")["Multi-T"]["ours"]


def test_a_surrogate_that_cannot_be_had_keeps_no_other_attack_back(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Request(ARTEFACTS["table1-cifar10"], "smoke", only=("adv-1",))
    attacked, said = list[str](), list[str]()
    mine = Workspace(made, say=said.append)
    surrogate, job = asked.jobs

    def train(self: Workspace, job: Job) -> None:
        if job == surrogate:
            raise LockError("in use by another process")

    def attack(self: Workspace, job: Job, spec: AttackSpec) -> None:
        if spec.surrogate:
            raise CheckpointError("its surrogate is not trained yet")
        attacked.append(spec.label)

    monkeypatch.setattr(Workspace, "train", train)
    monkeypatch.setattr(Workspace, "attack", attack)
    monkeypatch.setattr(Workspace, "measure", lambda *args: None)
    mine.work(asked.jobs)
    assert ["black box", *attacked] == [spec.label for spec in job.attacks]
    assert [text.partition(": left out for now: ")[::2] for text in said] == [
        (surrogate.name, "in use by another process"),
        ("one-step ADV, cifar10, seed 0, black box", "its surrogate is not trained yet"),
    ]


def test_an_attack_without_its_surrogate_says_so(made: Path, tmp_path: Path) -> None:
    row = ARTEFACTS["table1-cifar10"].rows[0]
    job = Request(ARTEFACTS["table1-cifar10"], "smoke").job(row, 0)
    runs = Workspace(tmp_path, (made / "runs",))
    with pytest.raises(CheckpointError, match="surrogate is not trained"):
        runs.attack(replace(job, run=RUN), replace(job.attacks[0], surrogate=replace(RUN, seed=77)))


def test_times_that_two_processes_measure_are_both_kept(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [ASKED.run(row, 0) for row in ASKED.rows[:2]]
    one, other = (Workspace(tmp_path) for _ in range(2))

    def slowly(*args: object) -> float:
        monkeypatch.setattr(workspace_module, "step_seconds", lambda *args: 2.0)
        other.measure(runs[1], 1)
        return 1.0

    monkeypatch.setattr(workspace_module, "step_seconds", slowly)
    one.measure(runs[0], 1)
    assert [(one.timing(run) or {}).get("seconds") for run in runs] == [1.0, 2.0]
    assert all("load_before" in (one.timing(run) or {}) for run in runs)
    assert one.timing(replace(runs[0], seed=3)) == one.timing(runs[0])


def interrupt(records: object) -> None:
    raise KeyboardInterrupt


def snapshot(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}


def test_a_folder_in_use_is_left_to_its_process(tmp_path: Path) -> None:
    assert not in_use(tmp_path / "none")
    with locked(tmp_path):
        with (tmp_path / "lock").open("r+") as handle, pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert in_use(tmp_path)
    assert not in_use(tmp_path)


def test_a_row_that_another_process_trains_is_left_for_later(
    atlas: Atlas,
    copy: Path,
    quick_plots: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = folder(copy, "atlas-l-1")
    (run / "last.safetensors").unlink()
    with locked(run):
        assert atlas("reproduce", NAME, "--scale", "smoke", "--workspace", copy) == 0
    text = capsys.readouterr().out
    assert "one-step ATLAS-l, cifar10, seed 0: left out for now" in text
    assert "missing: atlas-l-1 (seed 0: training in use after 3 epochs)" in text
    assert f"to continue: atlas reproduce {NAME} --scale smoke --workspace {copy}" in text
