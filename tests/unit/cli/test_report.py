"""`atlas report`, run as a person runs it."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import pytest

from tests.unit.cli.command import atlas
from tests.unit.reports import runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    place = runs.make_run(root / "[red]one", runs.make_data(root / "digits.npz"))
    runs.evaluated(place)
    return place


def test_the_page_and_the_plots(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert atlas(monkeypatch, "report", str(run), "--n", "20", "--plots", "figures") == 0
    assert (tmp_path / "report.html").read_text().lstrip().startswith("<!doctype html>")
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {f"{n}.{kind}" for n in ("radius", "steps", "training") for kind in ("pdf", "svg", "png")}
    assert list((run / "report").glob("study-*.safetensors"))


def test_tables_go_to_the_output_alone(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert atlas(monkeypatch, "report", str(run), "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["attack"] for row in rows] == ["clean", *runs.ATTACKS, "worst case", rows[-1]["attack"]]
    assert rows[-1]["attack"].startswith("worst class: ")
    assert {row["model"] for row in rows} == {"[red]one"}
    assert atlas(monkeypatch, "report", str(run), "--format", "latex") == 0
    assert capsys.readouterr().out.startswith("\\begin{table")


def test_an_evaluation_in_the_format_of_the_suffix(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation, out = run / "evaluations/quick-0", tmp_path / "table.md"
    assert atlas(monkeypatch, "report", str(evaluation), "-o", str(out)) == 0
    assert out.read_text().startswith("**digits")
    assert atlas(monkeypatch, "report", str(evaluation), "-o", str(tmp_path / "page.html")) == 0
    assert "[red]one" in (tmp_path / "page.html").read_text()


def test_a_folder_for_the_page_is_refused_before_anything_is_attacked(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("atlas.reports.quick_attack.engine.Engine", None)
    assert atlas(monkeypatch, "report", str(run), "--n", "7", "-o", str(tmp_path)) == 2
    assert "report.html" in capsys.readouterr().err


def test_a_run_without_an_evaluation(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Path(shutil.copytree(run, tmp_path / "[bold]two"))
    shutil.rmtree(place / "evaluations")
    out = tmp_path / "page.html"
    assert atlas(monkeypatch, "report", str(place), "--no-attack", "-o", str(out)) == 0
    assert "[bold]two: not evaluated yet" in capsys.readouterr().err
    assert out.exists()
    assert atlas(monkeypatch, "report", str(place), "--format", "md") == 2
    assert "none of these runs has been evaluated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nowhere",), 2, "not the folder of a run"),
        (("nowhere", "--format", "markdwon"), 2, "unknown format"),
        (("nowhere", "--format", "md", "-o", "page.html"), 2, "is a .html file, but --format is md"),
    ],
)
def test_mistakes(
    arguments: tuple[str, ...],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert atlas(monkeypatch, "report", *arguments) == code
    assert said in capsys.readouterr().err
