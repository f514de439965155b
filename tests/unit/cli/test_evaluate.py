"""`atlas evaluate`, `suites` and `compare`, run as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from atlas.attacks import suites
from atlas.evaluation.evaluation_folder import EvaluationFolder
from atlas.models import build
from atlas.training.run import RunConfig, train
from tests.unit.cli.command import atlas


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "net.safetensors"
    save_file(build("cnn-small", seed=1).state_dict(), path)
    return path


MODEL = ("--model", "cnn-small", "--data", "mnist-mini", "--n", "40")


def test_weights_to_json(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = (*MODEL, "--eps", "8/255", "--attacks", "fgsm,PGD-20", "--json")
    assert atlas(monkeypatch, "evaluate", str(weights), *options) == 0
    summary = json.loads(capsys.readouterr().out)
    assert list(summary["accuracy"]) == ["clean", "fgsm", "PGD-20", "worst case"]
    assert summary["n"] == 40
    assert summary["about"]["threat"] == {"name": "linf", "eps": pytest.approx(8 / 255)}
    (folder,) = (tmp_path / "evaluations/net").iterdir()
    assert EvaluationFolder(folder).load_summary() == summary


def test_a_state_dict_with_a_normalisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same numbers as from a file that holds the normalisation."""
    monkeypatch.chdir(tmp_path)
    net = build("cnn-small", normalize=((0.1307,), (0.3081,)), seed=1)
    torch.save({"state_dict": net.get_submodule("net").state_dict()}, "old.pth")
    save_file(net.state_dict(), "whole.safetensors")
    options = (*MODEL, "--eps", "0.1", "--attacks", "fgsm", "--json")
    found = []
    beside = [("--mean", "0.1307", "--std", "0.3081"), ("--normalize", "mnist")]
    for command in (*(("old.pth", *more) for more in beside), ("whole.safetensors",)):
        assert atlas(monkeypatch, "evaluate", *command, *options) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1] == found[2]


def test_a_run_knows_its_data_and_threat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = tmp_path / "run"
    table = {
        "data": "mnist-mini",
        "model": "cnn-small",
        "method": {"name": "natural"},
        "threat": {"name": "l2", "eps": 0.5},
        "training": {
            "batch_size": 500,
            "schedule": {"epochs": 1, "ramp_epochs": 0},
            "validation": {"size": 50, "attack": {"name": "fgsm"}},
        },
    }
    train(RunConfig.of(table), run, progress=False)
    out = tuple(tmp_path / f"a-name-that-would-not-fit-a-column-of-a-table-{k}" for k in "12")
    for seed, folder in enumerate(out):
        command = ("evaluate", str(run), "--n", "50", "--attacks", "pgd", "--out", str(folder))
        assert atlas(monkeypatch, *command, "--seed", str(seed)) == 0
    text = capsys.readouterr().out
    assert "accuracy [95% interval] on 50 images of mnist-mini, l2, eps 0.5" in text
    assert "worst case" in text
    about = json.loads((out[0] / "config.json").read_text())
    assert about["threat"] == {"name": "l2", "eps": 0.5}
    assert atlas(monkeypatch, "evaluate", str(run), "--norm", "linf") == 2
    assert "says nothing of linf" in capsys.readouterr().err
    assert f"Next: atlas report {out[0]}" in text, "not the run, which does not hold it"
    assert atlas(monkeypatch, "compare", *map(str, out)) == 0
    compared = capsys.readouterr().out
    a, b, *table = compared.splitlines()
    assert (a, b) == (f"A: {out[0]}", f"B: {out[1]}")
    assert "A - B [95% interval]" in compared
    assert max(map(len, table)) <= 80


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("no-such", *MODEL, "--eps", "0.1"), 2, "there is no folder no-such"),
        (("runs/nosuch",), 2, "there is no folder runs/nosuch"),
        (
            ("WEIGHTS", *MODEL, "--eps", "0.1", "--suite", "paper", "--attacks", "black box"),
            2,
            "--surrogate RUN",
        ),
        (("WEIGHTS", "--model", "cnn-small", "--eps", "0.1"), 2, "--data is missing"),
        (("WEIGHTS", *MODEL), 2, "--eps is missing"),
        (("WEIGHTS", *MODEL, "--eps", "-0.1"), 2, "got -0.1"),
        (("WEIGHTS", *MODEL, "--eps", "0.1", "--norm", "l1"), 2, "choose from: l2, linf"),
        (("WEIGHTS", *MODEL, "--eps", "0.1", "--suite", "papr"), 2, "did you mean 'paper'"),
        (("WEIGHTS", *MODEL, "--eps", "0.1", "--suite", "gone.toml"), 2, "gone.toml"),
        (("WEIGHTS", *MODEL, "--eps", "0.1", "--attacks", "apdg"), 2, "did you mean 'apgd'"),
        (("WEIGHTS", *MODEL, "--eps", "0.1", "--norm", "l2", "--attacks", "rays"), 2, "defined for Linf"),
        (("WEIGHTS", "--model", "cnn", "--data", "mnist-mini", "--eps", "0.1"), 4, "does not fit"),
        (("weights.pth", *MODEL, "--eps", "0.1"), 2, "there is no file weights.pth"),
        (("WEIGHTS", *MODEL, "--eps", "0.1", "--mean", "0.5"), 2, "--mean and --std belong together"),
        (("WEIGHTS", *MODEL, "--eps", "0.1", "--mean", "a", "--std", "1"), 2, "--mean must be a number"),
        (("WEIGHTS", *MODEL, "--eps", "0.1", "--normalize", "mnits"), 2, "did you mean 'mnist'"),
        (
            ("WEIGHTS", *MODEL, "--eps", "0.1", "--normalize", "mnist", "--mean", "0", "--std", "1"),
            2,
            "do the same: omit one",
        ),
        (("WEIGHTS", *MODEL, "--eps", "0.1", "--surrogate", "demo-adv-1"), 2, "black box attack"),
    ],
)
def test_mistakes_are_named(
    options: tuple[str, ...],
    code: int,
    words: str,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words_given = [str(weights) if option == "WEIGHTS" else option for option in options]
    assert atlas(monkeypatch, "evaluate", *words_given) == code
    assert words in capsys.readouterr().err
    assert not list(tmp_path.glob("**/attack-*"))


def test_an_invalid_result_has_an_exit_code_of_its_own(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code = """
from torch import nn

class Rounded(nn.Module):
    def forward(self, x):
        return (x.flatten(1)[:, 300:310] * 9).round()

def make(num_classes, shape):
    return Rounded()
"""
    (tmp_path / "masked_nets.py").write_text(code)
    options = ("--data", "mnist-mini", "--n", "100", "--eps", "0.1", "--attacks", "fgsm", "--json")
    assert atlas(monkeypatch, "evaluate", "masked_nets:make", *options) == 9
    summary = json.loads(capsys.readouterr().out)
    assert summary["valid"] is False
    worst = summary["accuracy"]["worst case"]
    assert worst["at_most"] == worst["right"] / worst["n"]
    assert "rate" not in worst
    assert atlas(monkeypatch, "evaluate", "masked_nets:make", *options[:-1]) == 9
    said = " ".join(capsys.readouterr().out.split())
    bound = f"at most {worst['at_most']:.1%} (upper bound; likely lower, because of zero-gradients"
    assert f"INVALID: the worst case is {bound}" in said


def test_suites_lists_every_suite(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert atlas(monkeypatch, "suites") == 0
    text = capsys.readouterr().out
    for name in suites.names():
        assert f"{name}:" in text
        for label in suites.suite(name).attacks:
            assert label in text


def test_compare_refuses_what_is_no_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert atlas(monkeypatch, "compare", str(tmp_path), str(tmp_path)) == 4
    assert "finished evaluation" in capsys.readouterr().err


def test_compare_of_a_run_names_its_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "evaluations" / "quick-1"
    place.mkdir(parents=True)
    (place / "summary.json").write_text("{}")
    monkeypatch.setenv("COLUMNS", "1000")
    assert atlas(monkeypatch, "compare", str(tmp_path), str(tmp_path)) == 4
    assert f"is a run; name one of its evaluations: {place}" in capsys.readouterr().err
