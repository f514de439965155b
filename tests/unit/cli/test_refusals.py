"""What makes no sense is exit 2 and words; hostile names are text in every output."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.unit.cli.command import atlas
from tests.unit.reports import runs


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("threat.eps=-0.1", "such as 8/255, got -0.1"),
        ("threat.eps=nan", "such as 8/255, got nan"),
        ("threat.eps=inf", "such as 8/255, got inf"),
        ("threat.eps=1.5", "eps must be between 0 and 1"),
        ("method.attack={name = 'pgd', steps = 0}", "steps must be an integer >= 1, got 0"),
        ("method.attack={name = 'pgd', steps = 99999999999999999999}", "an integer of 67 bits"),
        ("method.attack={name = 'pgd', steps = 3, step_size = 0}", "step_size must be > 0 and finite, got 0"),
        ("method.attack={name = 'pgd', steps = 3, restarts = 0}", "restarts must be an integer >= 1, got 0"),
        ("training.schedule.epochs=" + "9" * 5000, "must be an integer"),
        ("training.batch_size=1e3", "must be an integer"),
        ("training.optimizer.lr=true", "must be a number"),
        ("method.alpha=" + "[" * 5000, "must be a number"),
        ("model=wrn-10-9999", "unknown model 'wrn-10-9999'"),
        ("training.momentum=0.9", "choose from"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_settings(
    setting: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("train", "mnist-quick-atlas-1", "--set", "data=mnist-mini", "--set", setting)
    assert atlas(monkeypatch, *command) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir()), "nothing is written"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("train", "/etc/passwd"), 2, "unknown preset"),
        (("train", "../../etc/passwd.toml"), 2, "there is no file"),
        (("train", "outside.toml"), 2, "extends = '../other.toml'"),
        (("train", "inside.toml"), 2, "unknown preset '../../../etc/passwd'"),
        (("evaluate", "../x:y", "--data", "mnist-mini", "--eps", "0.1"), 2, "importing '../x' failed"),
        (("train", "demo-adv-1", "--out", "a\nb"), 2, "control characters in its name"),
        (("train", "demo-adv-1", "--out", "x" * 300), 6, "File name too long"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_paths_and_names(
    arguments: tuple[str, ...],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {
        "outside.toml": "extends = '../other.toml'",
        "inside.toml": "extends = '../../../etc/passwd'",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert atlas(monkeypatch, *arguments) == code
    assert words in " ".join(capsys.readouterr().err.split())
    assert {path.name for path in tmp_path.iterdir()} == set(files)


FOREIGN = {
    "files": {"thesis.tex": "x", ".video.part": "x", ".a.12.atlas.part": "x"},
    "a lock": {"thesis.tex": "x", "lock": "theirs", ".video.part": "x"},
    "a configuration": {"config.json": "{}", ".video.part": "x"},
}
EVALUATE = ("evaluate", "their_net:net", "--data", "mnist-mini", "--eps", "0.1", "--n", "4")


@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize(
    "command",
    [
        ("train", "demo-adv-1"),
        ("sweep", "demo-adv-1", "--grid", "method.attack.restarts=1,2"),
        EVALUATE,
        (*EVALUATE, "--processes", "2"),
    ],
    ids=["train", "sweep", "evaluate", "shards"],
)
def test_a_foreign_folder_is_refused_before_anything_in_it_is_changed(
    command: tuple[str, ...],
    files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "their_net.py").write_text(
        "from torch import nn\n"
        "def net(num_classes, shape):\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, num_classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "theirs"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    assert atlas(monkeypatch, *command, "--out", "theirs") == 2
    assert capfd.readouterr().err.startswith("atlas: theirs ")
    assert {path.name: path.read_text() for path in folder.iterdir()} == files


RUN = "=cmd('x') [red]<b>& 100%_$x$"
SUITE = 'attacks = [{ label = "+1 \\u001b[2J[/] \\\\input{x} |<i>", name = "pgd", steps = 2 }]\n'


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, one of a hostile name, and a suite with a hostile label."""
    root = tmp_path_factory.mktemp("names")
    run = runs.make_run(root / RUN, runs.make_data(root / "digits.npz"))
    shutil.copytree(run, root / "plain")
    (root / "suite.toml").write_text(SUITE)
    return root


def test_hostile_names_are_text_in_every_output(
    hostile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(hostile)
    monkeypatch.setenv("COLUMNS", "200")
    for run in (RUN, "plain"):
        command = ("evaluate", f"./{run}", "--suite", "suite.toml", "--n", "20", "--data", "digits.npz")
        assert atlas(monkeypatch, *command, "--out", f"{run}/evaluations/e") == 0
    assert atlas(monkeypatch, "compare", f"{RUN}/evaluations/e", "plain/evaluations/e") == 0
    shown = capsys.readouterr()
    assert RUN in shown.out
    assert "\\input{x} |<i>" in shown.err
    assert "\x1b" not in shown.out + shown.err
    assert {path.name for path in (hostile / RUN / "evaluations/e").glob("attack-*")} == {
        "attack-1-2j-input-x-i.npz"
    }
    texts = {}
    for kind in ("md", "latex", "csv"):
        assert atlas(monkeypatch, "report", RUN, "plain", "--format", kind) == 0
        texts[kind] = capsys.readouterr().out
        assert "\x1b" not in texts[kind]
    cells = {cell for row in csv.reader(io.StringIO(texts["csv"])) for cell in row}
    assert f"'{RUN}" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))]
    assert "\\input" not in texts["latex"]
    assert "<b>" not in texts["md"]


def test_one_image_and_one_pixel_and_two_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file to its numbers, by the commands."""
    (tmp_path / "pixel_model.py").write_text(
        "from torch import nn\n\n\n"
        "def net():\n    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(1), nn.Linear(1, 2))\n"
    )
    x = np.linspace(0, 255, 12).astype(np.uint8).reshape(12, 1, 1, 1)
    y = (np.arange(12) > 5).astype(int)
    np.savez(tmp_path / "pixels.npz", x_train=x, y_train=y, x_test=x[-1:], y_test=y[-1:])
    monkeypatch.chdir(tmp_path)
    changes = (
        "data=pixels.npz",
        "model=pixel_model:net",
        "training.validation.size=1",
        "training.batch_size=2",
    )
    options = [word for change in changes for word in ("--set", change)]
    epochs = ("--set", "training.schedule.epochs=2", "--set", "training.schedule.ramp_epochs=1")
    assert atlas(monkeypatch, "train", "demo-adv-1", *options, *epochs, "--out", "run") == 0
    assert atlas(monkeypatch, "evaluate", "run", "--attacks", "pgd,square", "--json") == 0
