"""The lines of a run on a terminal of 80 columns."""

from __future__ import annotations

import pytest

from atlas.training.display import Display
from atlas.training.log import Record


def record(epoch: int, **changes: float) -> Record:
    values = {"loss": 1234.5678, "eps": 0.123456, "lr": 1.234e-05, "jacobian": 1.234e-05}
    shares = {"train_adv": 1.0, "train_clean": 1.0, "val_clean": 1.0, "val_robust": 1.0}
    return {"epoch": epoch, "best": epoch == 0, **values, **shares, **changes}


@pytest.mark.parametrize(
    ("accuracy", "images"), [("train_adv", "adversaries"), ("train_clean", "clean images")]
)
def test_epochs_fit_80_columns_below_headings_that_are_explained_once(
    accuracy: str, images: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, where lines are broken
    display = Display("a run", 100, shown=True)
    display.epoch(record(0), accuracy, 5.0)
    display.epoch(record(99, loss=0.5, eps=8 / 255, lr=0.1, jacobian=20.0, val_robust=0.5), accuracy, 12345.0)
    lines = capsys.readouterr().err.splitlines()
    text = " ".join(lines[:2])
    assert f"train: accuracy on the {images} trained on" in text
    assert "*: best so far" in text
    assert max(map(len, lines)) <= 80
    heading, *rows = lines[2:]
    assert heading.split() == ["epoch", "loss", "eps", "lr", "||J||^2", "train", "clean", "robust", "time"]
    assert rows[0].split()[-3:] == ["100.0%", "*", "5s"]
    assert rows[1].split()[:5] == ["100/100", "0.500", "8/255", "0.1", "20"]
    assert rows[1].split()[5:] == ["100.0%", "100.0%", "50.0%", "12345s"]
    assert rows[0].split()[1] == "1.2e+03"
    assert rows[0].index("*") - 1 == heading.index("robust") + len("robust")


def test_imbalanced_classes_have_a_column_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    display = Display("a run", 100, shown=True)
    display.epoch(record(99, val_majority=0.964, val_balanced=0.125), "train_adv", 100.0)
    *text, heading, row = capsys.readouterr().err.splitlines()
    assert "balanced: robust, as the mean over classes (a constant answer has 96.4%" in " ".join(text)
    assert heading.split()[-2:] == ["balanced", "time"]
    assert row.split()[-2:] == ["12.5%", "100s"]
    assert max(map(len, [*text, heading, row])) <= 80
