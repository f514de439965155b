"""Tables and charts: numbers as text, pages with markers, and what fits a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlas.errors import UsageError
from atlas.reports import plots
from atlas.terminal import Terminal
from benchmarks.tables import (
    NOTE,
    Blocks,
    ChartPanel,
    TextTable,
    chart,
    facts,
    markdown,
    markers_of,
    note_of,
    over,
    put_between_markers,
    ratio,
    show,
)

MACHINE = {"device": "cpu", "cpu": "X", "cores": 2, "threads": 1, "torch": "2", "load_before": 0.5}


def test_ratios_are_taken_over_the_repeats_that_both_have() -> None:
    assert over([2.0, 4.0, 9.0], [1.0, 1.0]) == [2.5, 3.0, 3.5]
    assert over([1.0], []) is None
    assert (ratio([2.5, 3.0, 3.5]), ratio(None)) == ("3.00 [2.50, 3.50]", "-")


def test_the_facts_name_settings_and_versions() -> None:
    report = {"machine": MACHINE, "batch": 4, "repeats": 1}
    assert facts(report) == (
        "cpu (X, 2 cores, 1 threads), torch 2, batch 4, median [quartiles] of 1 repeats, load average before "
        "the start 0.5"
    )
    more = {**report, "settings": {"training.precision": "craft"}, "peers": {"a": "1.0", "b": None}}
    assert facts(more).endswith(", training.precision = craft; a 1.0, b absent")


def test_a_note_says_why_there_are_no_times() -> None:
    assert note_of({"note": "as ours", "error": None}) == "as ours"
    assert note_of({"how": "in older files", "error": None}) == "in older files"
    assert note_of({"note": "", "error": "not installed"}) == "not installed"
    failed = note_of({"note": "", "error": "ValueError: no\n such   luck " + "x" * 80})
    assert failed.startswith("failed: ValueError: no such luck xxx")
    assert len(failed) == 60


def test_a_page_is_replaced_between_its_markers_only(tmp_path: Path) -> None:
    page, (begin, end) = tmp_path / "page.md", markers_of("benchmarks step")
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    blocks: Blocks = ["**cnn**, 1x8x8", TextTable(("a", "b"), [("1", "2")])]
    put_between_markers(page, markdown(blocks), begin, end)
    table = "**cnn**, 1x8x8\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert page.read_text() == f"before\n{begin}\n{table}\n{end}\nafter\n"
    for text in ("nothing", f"{end}\n{begin}", f"{begin}{begin}{end}"):
        page.write_text(text)
        with pytest.raises(UsageError, match="must have the lines <!-- begin: benchmarks step -->"):
            put_between_markers(page, "", begin, end)


def test_a_wide_table_continues_below_and_notes_wrap(capsys: pytest.CaptureFixture[str]) -> None:
    wide = TextTable(("method", *(f"column number {n}" for n in range(8))), [("adv-1", *"12345678")])
    noted = TextTable(("who", "seconds", NOTE), [("ours", "1.0", "a long note of many words " * 5)])
    show(["**bold** text", wide, noted], Terminal())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "bold text"
    assert sum(line.startswith("method") for line in lines) == 2
    assert all(any(f"column number {n}" in line for line in lines) for n in range(8))
    assert " ".join(" ".join(lines).split()).count("many") == 5


def test_a_chart_has_every_panel_and_named_line() -> None:
    panels = [ChartPanel("images per step", "a title"), ChartPanel("FLOPs")]
    for panel in panels:
        panel.add([1, 10], [2, 20], "o-", "adv_1$", 0)
        panel.add([1, 10], [1, 10], ":", "in proportion")
    with plots.style():
        svg = plots.rendered(chart(panels, "seconds"), "svg").decode()
    for text in ("images per step", "FLOPs", "a title", "seconds", "adv_1$", "in proportion"):
        assert f">{text}</text>" in svg
