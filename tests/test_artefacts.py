"""The artefacts in results/: page, Markdown, LaTeX and CSV say what the JSON file says, digit by digit."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atlas_paper import paper
from atlas_paper.cells import TIME
from tests.published import ROOT, between, script

LOWER = "trained-bfloat16-all-attacked-bfloat16"
ARTEFACTS = {
    "table1-mnist-cpu": ("docs/mnist.md", "table1"),
    f"table1-mnist-cpu-cnn-{LOWER}": ("docs/mnist.md", "table1-cnn"),
    f"table1-mnist-cpu-cnn-{LOWER}-more": ("docs/mnist.md", "table1-cnn-more"),
    "table1-mnist-cpu-tuned": ("docs/mnist.md", "table1-tuned"),
    "table1-mnist-cpu-tuned-ten": ("docs/mnist.md", "table1-tuned-ten"),
    "table1-mnist-cpu-tuned-twenty": ("docs/mnist.md", "table1-tuned-twenty"),
    "loss-curves-cpu": ("docs/mnist.md", "loss-curves"),
    "collapse-cpu": ("docs/mnist.md", "collapse"),
    "table1-cifar10-cpu": ("docs/cifar.md", "table1-cifar10"),
    "ablation-cifar10-cpu": ("docs/cifar.md", "ablation-cifar10"),
    "table1-cifar100-cpu": ("docs/cifar.md", "table1-cifar100"),
    "ablation-cifar100-cpu": ("docs/cifar.md", "ablation-cifar100"),
}
"""Folders in results/, and where each is shown."""
pytestmark = pytest.mark.skipif(not (ROOT / "results").exists(), reason="no results here")
FIGURES = {"loss-curves-cpu", "collapse-cpu"}
"""Those whose table is none of cells."""
TABLES = {"paired", "paired-multi-step", "summary"}
"""Those on the page beside the table of cells."""
everywhere = pytest.mark.parametrize("folder", ARTEFACTS)
Line = list[str]


def files(folder: str, ending: str) -> list[Path]:
    return sorted((ROOT / "results" / folder).glob(f"*.{ending}"))


def whole(folder: str) -> dict[str, Any]:
    (path,) = files(folder, "json")
    return dict(json.loads(path.read_text()))


def signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def shown(column: str, cell: dict[str, Any]) -> tuple[str, str, str]:
    """The paper's number, ours and the difference, as a table has them."""
    digits = "g" if column == TIME else ".2f"
    theirs = "-" if cell["paper"] is None else f"{cell['paper']:{digits}}"
    if column == TIME:
        return theirs, "-" if cell["ours"] is None else f"{cell['ours']:.3g}", "-"
    if cell["ours"] is None:
        return theirs, "-", "-"
    low, high = cell["interval"]
    marks = "".join(f", {mark}" for mark in cell["marks"])
    return theirs, f"{cell['ours']:.2f}{marks} [{low:.1f}, {high:.1f}]", signed(cell["difference"])


def expected(table: dict[str, Any], columns: list[str]) -> Iterator[Line]:
    """Every line that says anything, of every table of an artefact, from its JSON file.

    Older tables have lines of nothing but dashes too, for rows without a number of ours.
    """
    for row in (row for row in table["rows"] if row["cells"]):
        cells = row["cells"]
        texts = [shown(c, cells[c]) if c in cells else ("-", "-", "-") for c in columns]
        for name, line in zip(("paper", "ours", "difference"), zip(*texts, strict=True), strict=True):
            about = [row["label"], row["network"]] if name == "paper" else ["", ""]
            if name == "paper" or set(line) != {"-"}:
                yield [*about, name, *line]
    for part in (part for name, part in table["tables"].items() if name in TABLES):
        for row in part["rows"]:
            yield [cell if isinstance(cell, str) else with_interval(cell) for cell in row]


def columns_of(markdown: list[Line]) -> list[str]:
    """Those of the table of cells, without their numbers of images."""
    heads = [line[3:] for line in markdown if line[:3] == ["", "network", ""]]
    return [head.partition(" (n = ")[0] for line in heads for head in line]


def with_interval(cell: dict[str, Any]) -> str:
    low_high = cell["interval"]
    return cell["text"] if low_high is None else f"{cell['text']} [{low_high[0]:.1f}, {low_high[1]:.1f}]"


def markdown_lines(text: str) -> list[Line]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def latex_lines(text: str) -> list[Line]:
    for written, meant in {r"{\scriptsize [": "[", "]}": "]", "$-$": "-", r"\\": ""}.items():
        text = text.replace(written, meant)
    lines: list[Line] = []
    for line in ([cell.strip() for cell in line.split("&")] for line in text.splitlines()):
        if len(line) > 1 and all(cell == "" or cell.startswith("[") for cell in line):
            # Wide tables have intervals in a line below their numbers.
            lines[-1] = [" ".join(filter(None, both)) for both in zip(lines[-1], line, strict=True)]
        else:
            lines.append(line)
    return lines


@everywhere
def test_the_page_has_the_artefacts_own_file(folder: str) -> None:
    page, marker = ARTEFACTS[folder]
    (file,) = files(folder, "md")
    assert between(page, f"<!-- begin: {marker} -->", f"<!-- end: {marker} -->") == file.read_text().strip()


@everywhere
def test_every_line_is_that_of_the_json_file(folder: str) -> None:
    (page,) = files(folder, "md")
    markdown = markdown_lines(page.read_text())
    latex = latex_lines("\n".join(path.read_text() for path in files(folder, "tex")))
    table, columns = whole(folder), columns_of(markdown)
    lines = list(expected(table, columns))
    assert lines
    for line in lines:
        assert line in markdown, "Markdown"
        assert line in latex, "LaTeX"
    for found in (markdown, latex):
        ours = [line for line in found if line[2:3] in (["ours"], ["difference"])]
        assert all(line in lines or set(line[3:]) == {"-"} for line in ours), "a line of no row"
    for row in table["rows"]:
        left_out = [cell for column, cell in row["cells"].items() if column not in columns]
        assert all(cell["paper"] is cell["ours"] is None for cell in left_out), "a column with numbers"


@pytest.mark.parametrize("folder", sorted(ARTEFACTS.keys() - FIGURES))
def test_every_number_is_counted_right(folder: str) -> None:
    """The mean over seeds of the share of its images, the difference, and the paper's own number."""
    for row in whole(folder)["rows"]:
        for column, cell in row["cells"].items():
            assert cell["paper"] == paper.number(row["task"], row["key"], column)
            if shares := [100 * seed["k"] / seed["n"] for seed in cell["seeds"]]:
                assert cell["ours"] == pytest.approx(sum(shares) / len(shares))
            if cell["difference"] is not None:
                assert cell["difference"] == pytest.approx(cell["ours"] - cell["paper"])


@pytest.mark.parametrize("folder", sorted(ARTEFACTS.keys() - FIGURES))
def test_every_number_of_the_csv_file(folder: str) -> None:
    table = whole(folder)
    with (ROOT / "results" / folder / f"{table['artefact']}.csv").open(newline="") as file:
        lines = {(line["row"], line["column"]): line for line in csv.DictReader(file)}
    for row in table["rows"]:
        for column, cell in row["cells"].items():
            line = lines.pop((row["key"], column))
            for name in ("paper", "ours", "difference"):
                written = float(line[name]) if line[name] else None
                assert written == pytest.approx(cell[name]), (row["key"], column, name)
    assert not lines


def test_an_artefact_is_kept_with_its_runs(tmp_path: Path) -> None:
    made, run = tmp_path / "results/mine-cpu", tmp_path / "runs/mnist-adv-1-0123abcd"
    table = {
        "rows": [{"runs": [{"config_hash": "0123abcd4567"}, {"config_hash": "trained in another place"}]}]
    }
    files = {made / "mine.json": json.dumps(table), made / "mine.md": "|1|", made / "mine.pdf": ""}
    files |= {run / name: name for name in ("config.json", "metrics.jsonl", "origin.json", "timing.jsonl")}
    files |= {run / "best.safetensors": "", run / "state.safetensors": ""}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    keep, kept = script("results").keep_artefact, tmp_path / "kept"
    assert keep(made, kept, weights=False).read_text() == "|1|"
    small = {f"mine-cpu/runs/mnist-adv-1-0123abcd/{path.name}" for path in run.glob("*.json*")}
    expected = {"mine-cpu/mine.json", "mine-cpu/mine.md", *small}
    assert {str(path.relative_to(kept)) for path in kept.rglob("*.*")} == expected
    keep(made, kept, weights=True)
    expected.add("mine-cpu/runs/mnist-adv-1-0123abcd/best.safetensors")
    assert {str(path.relative_to(kept)) for path in kept.rglob("*.*")} == expected
