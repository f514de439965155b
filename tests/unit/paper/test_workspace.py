"""What is found, copied, marked, left out: runs in other places, unfinished, failed, collapsed, in use."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atlas.config import fingerprint
from atlas.errors import LockError
from atlas.evaluation.evaluation_folder import EvaluationFolder
from atlas.files import locked
from atlas.runs import Run
from atlas.training import train
from atlas_paper import runner as runner_module
from atlas_paper import workspace as workspace_module
from atlas_paper.artefacts import ARTEFACTS
from atlas_paper.request import Request, RunSpec
from atlas_paper.runner import Runner, Timings
from atlas_paper.workspace import Workspace, in_use

Atlas = Callable[..., int]
Smoke = Callable[..., dict[str, Any]]
NAME = "ablation-cifar10"


@pytest.fixture
def made(smoke: Smoke, workspace: Path) -> Path:
    """The shared workspace, with the artefact in it."""
    smoke(NAME)
    return workspace


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """A private workspace to damage: the artefact's runs and evaluations, at the same path of data."""
    place, first = tmp_path / "mine", Workspace(made)
    for row in ARTEFACTS[NAME].rows:
        run = request(made).run(row, 0)
        for part, name in (("runs", first.run_folder(run).name), ("evaluations", run.name)):
            shutil.copytree(made / part / name, place / part / name, dirs_exist_ok=True)
    shutil.copy(made / "timings.json", place)
    return place


def request(workspace: Path, **options: Any) -> Request:
    return Request(ARTEFACTS[NAME], "smoke", workspace / "data", **options)


def folder(workspace: Path, made: Path, key: str) -> Path:
    (row,) = [row for row in ARTEFACTS[NAME].rows if row.key == key]
    return workspace / "runs" / request(made).run(row, 0).name


@pytest.fixture
def finished(
    atlas: Atlas, copy: Path, made: Path, quick_plots: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[dict[str, Any], str]]:
    """The artefact from what is finished in the copy: its JSON and its Markdown."""
    # The made-up images are known by their path.
    monkeypatch.setattr(Workspace, "data", property(lambda self: made / "data"))

    def write(*options: object) -> tuple[dict[str, Any], str]:
        words = ("reproduce", NAME, "--scale", "smoke", "--workspace", copy, "--finished", *options)
        assert atlas(*words) == 0
        place = copy / "results" / f"{NAME}-smoke"
        return json.loads((place / f"{NAME}.json").read_text()), (place / f"{NAME}.md").read_text()

    return write


def cells(whole: dict[str, Any], key: str) -> dict[str, Any]:
    (row,) = [row for row in whole["rows"] if row["key"] == key]
    return dict(row["cells"])


def test_a_collapsed_row_is_marked(finished: Any, copy: Path, made: Path) -> None:
    metrics = folder(copy, made, "atlas-l-1") / "metrics.jsonl"
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


def test_a_failed_row_has_no_numbers(finished: Any, copy: Path, made: Path) -> None:
    run = folder(copy, made, "atlas-l-1")
    (run / "last.safetensors").unlink()
    (run / "not-finite.json").write_text("{}")
    whole, page = finished()
    assert cells(whole, "atlas-l-1")["clean"]["ours"] is None
    assert "| ours | failed | failed |" in page
    assert "broke off" in page
    assert whole["missing"] == [
        "atlas-l-1 (seed 0: training failed after 3 epochs; to try again, remove its folder)"
    ]


def test_an_invalid_evaluation_has_no_number(finished: Any, copy: Path, made: Path) -> None:
    name = folder(copy, made, "atlas-l-1").name
    (path,) = (copy / "evaluations" / name).glob("multi-t-*/summary.json")
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


def test_missing_rows_are_named_with_the_command(finished: Any, copy: Path, made: Path) -> None:
    shutil.rmtree(folder(copy, made, "atlas-g-1"))
    shutil.rmtree(copy / "evaluations" / folder(copy, made, "atlas-l-1").name)
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
    asked = request(made)
    (tmp_path / "linked").symlink_to(made / "runs")
    mine = Workspace(tmp_path / "empty", (tmp_path,))
    for row in asked.rows:
        run = asked.run(row, 0)
        found = mine.finished(run)
        assert found is not None
        assert json.loads((found / "config.json").read_text())["hash"] == run.hash
    assert Workspace(tmp_path / "empty").finished(asked.run(asked.rows[0], 0)) is None
    assert mine.finished(asked.run(asked.rows[0], 1)) is None, "another seed is another run"


def test_a_run_whose_settings_were_changed_on_the_way_is_not_used(made: Path, tmp_path: Path) -> None:
    run = request(made).run(ARTEFACTS[NAME].rows[0], 0)
    shutil.copytree(made / "runs" / run.name, tmp_path / "other")
    mine = Workspace(tmp_path / "empty", (tmp_path / "other",))
    assert mine.finished(run) == tmp_path / "other"
    folder, other = Run(tmp_path / "other"), replace(run.config, model="cnn").table()
    folder.state_path.write_bytes(b"")
    folder.write_config(other, "run")
    folder.write_config(run.config.table(), "run")
    assert folder.changed_from == [run.hash, fingerprint(other)]
    assert Workspace(tmp_path / "empty", (tmp_path / "other",)).finished(run) is None


def test_a_run_that_was_changed_in_its_own_place_is_left_there_and_named(
    atlas: Atlas, finished: Any, copy: Path, made: Path
) -> None:
    place = folder(copy, made, "adv-1")
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


def test_an_unfinished_run_elsewhere_is_copied_and_continues_there(
    atlas: Atlas, made: Path, tmp_path: Path, quick_plots: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workspace, "data", property(lambda self: made / "data"))
    run = request(made).run(ARTEFACTS[NAME].rows[0], 0)
    other = begun(run, tmp_path / "other" / "some-name")
    before = snapshot(other)
    words = ("--scale", "smoke", "--workspace", tmp_path / "mine", "--runs", tmp_path / "other")
    assert atlas("reproduce", NAME, *words, "--rows", "adv-1") == 0
    for name in ("metrics.jsonl", "best.safetensors", "last.safetensors"):
        ours, whole = (place / "runs" / run.name / name for place in (tmp_path / "mine", made))
        assert ours.read_bytes() == whole.read_bytes()
    assert snapshot(other) == before


def test_finished_evaluations_elsewhere_are_used(
    atlas: Atlas, made: Path, tmp_path: Path, quick_plots: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workspace, "data", property(lambda self: made / "data"))
    mine = tmp_path / "mine"
    words = ("--scale", "smoke", "--workspace", mine, "--runs", made, "--finished")
    assert atlas("reproduce", NAME, *words) == 0
    ours, first = (json.loads((w / f"results/{NAME}-smoke/{NAME}.json").read_text()) for w in (mine, made))
    assert ours["missing"] == [f"{row['key']} (time per batch not measured)" for row in first["rows"]]
    for row in first["rows"]:
        assert cells(ours, row["key"])["Multi-T"] == row["cells"]["Multi-T"]
    assert not (mine / "runs").exists()
    assert not (mine / "evaluations").exists()


def begun(run: RunSpec, place: Path) -> Path:
    """A training that was stopped after its first epoch."""
    with pytest.raises(KeyboardInterrupt):
        train(run.config, place, on_epoch=interrupt, progress=False)
    return place


def test_a_run_that_was_killed_while_it_saved_is_not_thrown_away(made: Path, tmp_path: Path) -> None:
    run = request(made).run(ARTEFACTS[NAME].rows[0], 0)
    mine = Workspace(tmp_path / "mine", (tmp_path / "other",))
    begun(run, tmp_path / "other" / "older")
    folder = Run(begun(run, mine.run_folder(run)))
    folder.state_path.replace(folder.previous_path)
    before = snapshot(folder.path)
    assert mine.unfinished(run) == folder.path
    assert mine.copy_into_workspace(run) == folder.path
    assert snapshot(folder.path) == before


def test_a_copy_that_was_cut_off_is_no_run_and_one_in_use_is_not_replaced(made: Path, tmp_path: Path) -> None:
    run = request(made).run(ARTEFACTS[NAME].rows[0], 0)
    other = begun(run, tmp_path / "other" / "name")
    place = Workspace(tmp_path / "mine").run_folder(run)
    shutil.copytree(other, place.with_name(f".{place.name}.part"))
    mine = Workspace(tmp_path / "mine", (tmp_path / "other",))
    assert mine.unfinished(run) == other
    with locked(place), pytest.raises(LockError, match="trained by another process"):
        mine.copy_into_workspace(run)
    assert snapshot(mine.copy_into_workspace(run)).keys() >= {"state.safetensors", "config.json"}
    assert not list(place.parent.glob(".*"))


def test_a_damaged_evaluation_is_made_again(
    atlas: Atlas, finished: Any, copy: Path, made: Path, quick_plots: None
) -> None:
    before, _ = finished()
    (path,) = (copy / "evaluations" / folder(copy, made, "atlas-l-1").name).glob("multi-t-*/attack-*.npz")
    path.write_bytes(b"torn")
    without, _ = finished()
    assert without["missing"] == ["atlas-l-1 (seed 0: attacks not finished)"]
    assert atlas("reproduce", NAME, "--scale", "smoke", "--workspace", copy) == 0
    again, _ = finished()
    assert cells(again, "atlas-l-1")["Multi-T"]["ours"] == cells(before, "atlas-l-1")["Multi-T"]["ours"]


def test_a_surrogate_that_cannot_be_had_keeps_no_other_attack_back(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Request(ARTEFACTS["table1-cifar10"], "smoke", made / "data", only=("adv-1",))
    surrogate, (row,) = asked.surrogate("cifar10"), asked.rows
    attacked, said = [], []
    runner = Runner(Workspace(made), say=said.append, progress=False)

    def trained(self: Runner, request: Request, run: RunSpec, what: str) -> Path:
        if run == surrogate:
            raise LockError("the surrogate is being trained by another process")
        return made

    monkeypatch.setattr(Runner, "trained", trained)
    monkeypatch.setattr(Runner, "evaluate", lambda *args: attacked.append(args[-1].label))
    monkeypatch.setattr(Timings, "measure", lambda *args: None)
    runner.work(asked)
    wanted = [column.label for column in asked.columns(row)]
    assert [*attacked, "black box"] == [*wanted[1:], wanted[0]]
    assert said == [
        "one-step ADV, seed 0, black box: left out for now: the surrogate is being trained by another process"
    ]


def test_times_that_two_processes_measure_are_both_kept(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [request(made).run(row, 0) for row in ARTEFACTS[NAME].rows[:2]]
    images = Runner(Workspace(made)).test_images(runs[0].config.data)
    one, other = (Timings(tmp_path / "timings.json", torch.device("cpu")) for _ in range(2))

    def slowly(*args: object) -> float:
        monkeypatch.setattr(runner_module, "step_seconds", lambda *args: 2.0)
        other.measure(runs[1], images, 1)
        return 1.0

    monkeypatch.setattr(runner_module, "step_seconds", slowly)
    one.measure(runs[0], images, 1)
    assert [(one.known(run) or {}).get("seconds") for run in runs] == [1.0, 2.0]
    assert all("load_before" in (one.known(run) or {}) for run in runs)


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
    made: Path,
    quick_plots: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Workspace, "data", property(lambda self: made / "data"))
    run = folder(copy, made, "atlas-l-1")
    (run / "last.safetensors").unlink()
    with locked(run):
        assert atlas("reproduce", NAME, "--scale", "smoke", "--workspace", copy) == 0
    text = capsys.readouterr().out
    assert "one-step ATLAS-l, seed 0: left out for now" in text
    assert "missing: atlas-l-1 (seed 0: training in use after 3 epochs)" in text
    assert f"to continue: atlas reproduce {NAME} --scale smoke --workspace {copy}" in text
