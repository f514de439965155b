"""Tables: read back by parsers that are not ours, and text that tries to be more than text."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from atlas.evaluation import Score
from atlas.reports import tables
from atlas.reports.tables import Cell, Table

NASTY = [
    "<script>alert(1)</script>",
    "a|b\nc",
    "=HYPERLINK(1)",
    "@x",
    "+1+1",
    "\tx",
    "\rx",
    '"q", r',
    "100% $x_1$ \\y",
]


def table() -> Table:
    return Table.of(
        "Two models",
        ["model", "PGD-20", "seconds"],
        [
            ["first", Cell.of(Score(90, 100), best=True), Cell.number(-3.25)],
            ["second", Cell.of(Score(88, 100), tied=True), "-"],
            ["third", Cell.of(Score(1, 100, ("random",))), Cell.number(1e-3, "{:.3f}")],
        ],
        notes=("n = 100",),
        tied_means="p >= 0.05",
    )


def test_markdown() -> None:
    lines = table().markdown().splitlines()
    assert lines[0] == "**Two models**"
    assert lines[4] == "| first | **90.0%** [82.6, 94.5] | -3.2 |"
    assert lines[5] == "| second | 88.0%† [80.2, 93.0] | - |"
    assert lines[6] == "| third | invalid (random) | 0.001 |"
    assert [line for line in lines[7:] if line] == [
        "bold: the best of its column",
        "† p &gt;= 0.05",
        "n = 100",
    ]


def test_marks_that_no_cell_has_are_not_explained() -> None:
    plain = Table.of("", ["a"], [["b"]])
    assert plain.legend == ()
    assert plain.markdown() == "| a |\n| --- |\n| b |\n"


def test_csv_is_numbers_with_the_ends_of_their_intervals() -> None:
    text = table().csv()
    assert text.count("\r\n") == text.count("\n") == 4
    rows = list(csv.DictReader(io.StringIO(text)))
    assert float(rows[0]["PGD-20"]) == 90
    assert float(rows[0]["PGD-20 low"]) == pytest.approx(82.563, abs=1e-3)  # Wilson, by hand
    assert rows[0]["seconds"] == "-3.25"
    assert Table.of("t", ["n"], [[Cell.number(1000, "{:d}")]]).csv() == "n\r\n1000\r\n"
    assert rows[2]["PGD-20"] == "invalid (random)"
    assert rows[2]["PGD-20 high"] == ""


@pytest.mark.parametrize("text", NASTY)
def test_csv_holds_any_text_and_no_formula(text: str) -> None:
    rows = list(csv.reader(io.StringIO(Table.of("t", [text, "b"], [[text, "x"]]).csv(), newline="")))
    assert rows[0] == [*rows[1][:1], "b"]
    assert rows[0][0] in (text, f"'{text}")
    assert not re.match(r"\s*[=+@\t\r-]", rows[0][0])


@pytest.mark.parametrize(
    ("text", "kept"), [("-1.5", True), ("-3e-4", True), ("-1+cmd|x", False), (" =1", False)]
)
def test_negative_numbers_stay_numbers_in_csv(text: str, kept: bool) -> None:
    assert (tables.escape_csv(text) == text) is kept


@pytest.mark.parametrize("text", NASTY)
def test_markdown_keeps_text_in_its_cell(text: str) -> None:
    lines = Table.of(text, ["a", "b"], [[text, "x"]], notes=(text,)).markdown().splitlines()
    row = next(line for line in lines if line.endswith("| x |"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
    assert "<" not in "".join(lines)


@pytest.mark.parametrize("text", [*NASTY, "[5cm] x", "\\input{/etc/passwd}", "a & b # c ~ ^ { }", "*", "`x'"])
def test_latex_has_no_active_character_left(text: str) -> None:
    shown = tables.escape_latex(text)
    assert "\n" not in shown
    for known in [*tables.LATEX.values()]:
        shown = shown.replace(known, "")
    assert not set(shown) & set("\\{}$&#^_~%<>[]")


def test_latex_is_a_booktabs_table() -> None:
    text = table().latex()
    for part in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrr}", r"\textdagger{} p"):
        assert part in text
    assert r"first & \textbf{90.0\%} {\scriptsize [82.6, 94.5]} & $-$3.2 \\" in text


def wide_table() -> Table:
    """As wide as Table 1 of an artefact, with text that tries to be more than text."""
    heads = ["", *(f"attack {k} (n = 1,000)" for k in range(12))]
    cells = [Cell("-3.63", -3.63, (-3.9, 4.1))] * 12
    return Table.of('a "wide" one', heads, [["ours", *cells], ["other", *["-"] * 12]], notes=tuple(NASTY))


def test_a_wide_table_has_intervals_below_and_is_scaled_to_the_page() -> None:
    lines = wide_table().latex().splitlines()
    assert lines[1] == r"  % \usepackage{booktabs,graphicx}"
    assert any(r"\resizebox{\linewidth}" in line for line in lines)
    assert f"    ours{' & $-$3.63' * 12} \\\\" in lines
    assert "    " + r" & {\scriptsize [$-$3.9, 4.1]}" * 12 + r" \\" in lines
    assert "resizebox" not in table().latex()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_tables_compile_and_fit_the_page(tmp_path: Path) -> None:
    """In LaTeX's own encoding and page, which is narrow."""
    every = Table.of("t", ["a"], [[f"{char}1"] for char in tables.LATEX])
    body = "".join(each.latex() for each in (table(), wide_table(), every))
    head = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}"
    (tmp_path / "t.tex").write_text(f"{head}\n{body}\\end{{document}}\n")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "t.tex"]
    told = subprocess.run(words, cwd=tmp_path, capture_output=True, check=False)
    assert told.returncode == 0, told.stdout.decode(errors="replace")[-2000:]
    assert b"Overfull \\hbox" not in told.stdout


def test_json() -> None:
    plain = json.loads(json.dumps(table().plain()))
    assert plain["columns"] == ["model", "PGD-20", "seconds"]
    assert plain["rows"][0][1]["best"] is True
    assert plain["rows"][1][1] | {"interval": None} == {
        "text": "88.0%",
        "value": 88.0,
        "interval": None,
        "best": False,
        "tied": True,
    }
    assert plain["rows"][2][1] == "invalid (random)"


def test_latex_sets_a_minus_and_leaves_names_alone() -> None:
    cell = Cell("-0.5", -0.5, (-3.4, 2.4), note="p = 1")
    text = Table.of("t", ["model", "x"], [["mnist-adv-1", cell]]).latex()
    assert r"mnist-adv-1 & $-$0.5 {\scriptsize [$-$3.4, 2.4] p = 1} \\" in text
