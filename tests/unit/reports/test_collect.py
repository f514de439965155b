"""What a report finds in folders: whole ones, moved ones, and ones that something happened to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from torch import Tensor

from atlas.errors import AtlasError, CheckpointError, DataError, UsageError
from atlas.evaluation.evaluation_folder import EvaluationFolder
from atlas.reports import write
from atlas.reports.collect import Given, collect
from atlas.reports.quick_attack import studied
from atlas.reports.write import tables
from atlas.threat import Linf
from tests.unit.reports import runs


@pytest.fixture
def run(two_runs: list[Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_runs[0], tmp_path / "elsewhere" / "first"))


def test_a_moved_run_is_whole(run: Path) -> None:
    (found,) = collect([run])
    assert (found.name, len(found.epochs), list(found.evaluations)) == ("first", 3, ["quick-0"])
    assert found.seconds > 0
    assert found.best is not None
    assert found.best["val_robust"] == max(epoch["val_robust"] for epoch in found.epochs)
    assert found.collapse is None
    assert found.notes == ()
    summary = EvaluationFolder(run / "evaluations/quick-0").load_summary()
    assert found.evaluations["quick-0"].summary() == summary


def test_a_collapse_is_seen(run: Path) -> None:
    runs.collapse(run)
    (found,) = collect([run])
    assert found.collapse is not None
    assert found.collapse["epoch"] == 2


def test_runs_of_one_name_are_named_by_their_folders(run: Path, two_runs: list[Path]) -> None:
    names = [found.name for found in collect([run, two_runs[0], run])]
    assert names == ["elsewhere/first", f"{two_runs[0].parent.name}/first"]


def test_a_run_without_evaluation_or_weights_says_so(run: Path) -> None:
    shutil.rmtree(run / "evaluations")
    (run / "best.safetensors").unlink()
    (found,) = collect([run])
    assert found.model is None
    assert "cannot be attacked" in found.notes[0]
    assert "atlas evaluate" in found.notes[1]


def test_a_training_that_is_not_over_broke_off_or_was_changed_says_so(run: Path) -> None:
    (run / "last.safetensors").unlink()
    (run / "state.safetensors").write_bytes(b"")
    assert collect([run])[0].notes == ("training has not finished",)
    (run / "not-finite.json").write_text("{}")
    assert collect([run])[0].notes == ("training stopped because its numbers were not finite",)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"changed_from": ["0123abcd"]}))
    assert "changed during training, from hash 0123abcd" in collect([run])[0].notes[0]


def test_evaluations_of_other_weights_or_without_end_are_left_out(run: Path, two_runs: list[Path]) -> None:
    shutil.copytree(two_runs[1] / "evaluations/quick-0", run / "evaluations/other")
    shutil.copytree(two_runs[0] / "evaluations/quick-0", run / "evaluations/half")
    (run / "evaluations/half/summary.json").unlink()
    (found,) = collect([run])
    assert list(found.evaluations) == ["quick-0"]
    assert any("half has not finished" in note for note in found.notes)
    assert any("other is of other weights" in note for note in found.notes)


def test_evaluations_beside_the_run_are_found_by_its_weights(run: Path, two_runs: list[Path]) -> None:
    (run / "evaluations/quick-0").rename(run.parent / "apart")
    shutil.copytree(two_runs[1] / "evaluations/quick-0", run.parent / "foreign")
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


def test_folders_that_are_no_runs(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected folders of runs or evaluations"):
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
        ("config.json", b"[[]]"),
        ("best.safetensors", b"\0" * 40),
        ("evaluations/quick-0/summary.json", b'{"attacks": {}, "flags": [], "about": {}}'),
        ("evaluations/quick-0/summary.json", b'{"attacks": [], "flags": [{"name": 1}], "about": 3}'),
        ("evaluations/quick-0/clean.npz", b"PK"),
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


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    return runs.make_data(tmp_path_factory.mktemp("data") / "digits.npz")


def ink(x: Tensor) -> Tensor:
    """Of any model: a function."""
    return x.flatten(1)[:, 300:310]


def test_evaluations_of_any_model_are_collected_under_its_name(tmp_path: Path, digits: str) -> None:
    """In the layout of `atlas evaluate`, evaluations/MODEL/EVALUATION: given one by one, or as MODEL."""
    places = [tmp_path / "evaluations" / "ink" / name for name in ("one", "two")]
    for seed, place in enumerate(places):
        runs.evaluated_by_hand(place, ink, digits, seed=seed)
    for paths in (places, [places[0].parent]):
        (found,) = collect(paths)
        assert (found.name, sorted(found.evaluations), found.settings) == ("ink", ["one", "two"], {})
    text = write.page([found], {}, "x")
    assert "Robust accuracy (%) per class" in text
    assert "The folder of an evaluation holds no weights to attack" in text
    assert 'id="training"' not in text
    assert "| ink (one) |" in tables([found], "md")
    assert {each["evaluation"] for each in json.loads(tables([found], "json"))} == {"one", "two"}


def test_models_evaluated_in_one_folder_are_separate(tmp_path: Path, digits: str) -> None:
    places = [tmp_path / "evaluations" / "mine" / name for name in ("one", "two")]
    for place, key in zip(places, "ab", strict=True):
        runs.evaluated_by_hand(place, ink, digits, model_key=key)
    assert [found.name for found in collect(places)] == ["one", "two"]


def test_an_evaluation_given_beside_its_run_belongs_to_it(run: Path, tmp_path: Path, digits: str) -> None:
    (run / "evaluations/quick-0").rename(tmp_path / "quick-0")
    runs.evaluated_by_hand(tmp_path / "ink", ink, digits)
    inside = run / "evaluations/quick-1"
    runs.evaluated(run, name=inside.name)
    for order in ([run, tmp_path / "quick-0"], [tmp_path / "quick-0", run]):
        found, other = collect([*order, inside, tmp_path / "ink"])
        assert (found.name, sorted(found.evaluations)) == ("first", ["quick-0", "quick-1"])
        assert (other.name, list(other.evaluations)) == ("ink", ["ink"])
        assert found.epochs
        assert not found.notes
    write.page([found, other], studied([found, other], 10, progress=False), "x")


def test_a_run_by_fit_takes_what_it_lacks(tmp_path: Path, digits: str) -> None:
    place = tmp_path / "runs/fit"
    model = runs.make_fit(place, digits)
    runs.evaluated_by_hand(place / "evaluations/quick", model, digits)
    (bare,) = collect([place])
    assert bare.model is None
    assert list(bare.evaluations) == ["quick"]
    assert any("need --model and --data" in note for note in bare.notes)
    text = write.page([bare], studied([bare], progress=False), "x")
    assert "batches of 20" in text
    (found,) = collect([place], Given(data=digits, model="cnn-small"))
    assert found.model is not None
    assert (found.notes, list(found.evaluations)) == ((), ["quick"])  # known by the weights
    studies = studied([found], 10, progress=False)
    assert "Radius and steps" in write.page([found], studies, "x")


def test_a_run_by_fit_with_a_configuration_of_its_own_takes_eps_too(tmp_path: Path, digits: str) -> None:
    place = tmp_path / "fit"
    runs.make_fit(place, digits, config={"note": "of mine"})
    (bare,) = collect([place])
    assert any("--model and --data and --eps" in note for note in bare.notes)
    assert "of mine" in write.page([bare], {}, "x")
    (found,) = collect([place], Given(data=digits, model="cnn-small", threat=Linf(0.2)))
    assert studied([found], 10, progress=False)["fit"].threat == Linf(0.2)


def test_what_no_folder_lacks_is_refused(run: Path, tmp_path: Path, digits: str) -> None:
    runs.evaluated_by_hand(tmp_path / "ink", ink, digits)
    cases = {"--data": Given(data=digits), "--model": Given(model="cnn"), "--eps": Given(threat=Linf(0.1))}
    for option, given in cases.items():
        with pytest.raises(UsageError, match=f"{option} is for folders that lack it"):
            collect([run], given)
    with pytest.raises(UsageError, match="--model is for"):
        collect([tmp_path / "ink"], Given(model="cnn"))
    runs.make_fit(tmp_path / "fit", digits)
    with pytest.raises(DataError, match="--no-attack"):
        collect([tmp_path / "fit"], Given(data="./nowhere.npz", model="cnn-small"))


def test_an_evaluation_without_an_end_is_an_error_alone_and_a_note_beside_others(
    tmp_path: Path, digits: str
) -> None:
    whole, half = (tmp_path / "evaluations/ink" / name for name in ("whole", "half"))
    runs.evaluated_by_hand(whole, ink, digits)
    shutil.copytree(whole, half)
    (half / "summary.json").unlink()
    with pytest.raises(CheckpointError, match="half has not finished"):
        collect([half])
    (found,) = collect([whole, half])
    assert "half has not finished" in found.notes[0]


def test_a_run_with_one_answer_or_imbalanced_classes_says_so(run: Path) -> None:
    metrics = run / "metrics.jsonl"
    shares = {"constant": True, "val_majority": 0.96, "val_balanced": 0.1}
    written(metrics, [r | (shares if r.get("best") else {}) for r in unsigned(metrics)])
    (found,) = collect([run])
    assert found.notes[0] == "constant: its weights give every validation image the same prediction"
    text = write.page([found], {}, "x")
    assert "share of the largest class 96.0%, mean over the classes 10.0%" in text
    assert "one prediction for every validation image" in text


def unsigned(metrics: Path) -> list[dict[str, object]]:
    """The records as versions without checksums wrote them."""
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "crc"} for record in records]


def written(metrics: Path, records: list[dict[str, object]]) -> None:
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_impossible_metrics_are_refused_even_without_checksums(run: Path) -> None:
    metrics = run / "metrics.jsonl"
    records = unsigned(metrics)
    written(metrics, records)
    assert len(collect([run])[0].epochs) == 3
    epochs = [record for record in records if record["kind"] == "epoch"]
    unnamed = {key: value for key, value in epochs[0].items() if key != "val_clean"}
    cases = [epochs[1:], [epochs[0], *epochs], [epochs[0] | {"jacobian": -1}], [unnamed]]
    for case in cases:
        written(metrics, case)
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
            collect([run])


@pytest.mark.parametrize("damaged", ["summary.json", "config.json"])
def test_damage_to_an_evaluation_beside_its_run_is_not_overlooked(run: Path, damaged: str) -> None:
    (run / "evaluations/quick-0").rename(run.parent / "apart")
    (run.parent / "apart" / damaged).write_text("{")
    with pytest.raises(CheckpointError, match=f"apart/{damaged}"):
        collect([run])
