"""Names of any kind on a terminal: shown, never obeyed."""

from __future__ import annotations

import io
import os
import pty
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.table import Table

from atlas.evaluation.run_attack import AttackProgress
from atlas.terminal import Terminal, share_bars
from atlas.training.display import Display

HOSTILE = "a[/] [red]b :cat: \x1b]0;owned\x07\x1b[2J\x9b31m\u202ec\udcff"
"""Markup that does not close, an emoji's name, escape sequences of 7 and 8 bits, a turn of direction, and a
byte that is no text."""
SHOWN = "a[/] [red]b :cat:"
STYLE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
"""What rich itself writes: colours, the cursor up and down."""


def said(by: Terminal, *things: object) -> str:
    by.file = io.StringIO()
    for thing in things:
        by.print(thing)
    return by.file.getvalue()


def assert_harmless(text: str) -> None:
    assert SHOWN in text
    rest = STYLE.sub("", text)
    assert not set(rest) & set("\x07\x1b\x9b\u202e\udcff"), repr(rest)
    assert "\x1b[2J" not in text
    text.encode()


def test_text_tables_and_titles() -> None:
    table = Table("head", HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE, "x")
    text = said(Terminal(), HOSTILE, table)
    assert_harmless(text)
    assert text.count(SHOWN) == 4


def test_a_terminal_that_is_closed_or_a_pipe_that_nobody_reads_ends_nothing() -> None:
    """A run that is to save has to live on, and what is left in a buffer must not fail at its exit."""
    master, tty = pty.openpty()
    read, write = os.pipe()
    for mine, theirs in ((tty, master), (write, read)):
        terminal = Terminal()
        with os.fdopen(mine, "w") as file:
            terminal.file = file
            os.close(theirs)
            for _ in range(2):
                terminal.print("anybody?")
        assert terminal.quiet


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_still_an_error() -> None:
    terminal = Terminal()
    terminal.file = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)
    with pytest.raises(OSError, match="No space left"):
        terminal.print("a table")


def test_lines_stay_lines() -> None:
    assert said(Terminal(), "a\nb\x1b\nc") == "a\nb \nc\n"


@pytest.fixture
def a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars are shown on terminals only."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")


@pytest.mark.usefixtures("a_terminal")
def test_the_bars_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(HOSTILE, 1, shown=True)
    with display.bars:
        display.begin(HOSTILE, 10)
    assert_harmless(capsys.readouterr().err)


@pytest.mark.usefixtures("a_terminal")
def test_the_bar_of_an_attack(capsys: pytest.CaptureFixture[str]) -> None:
    display = AttackProgress(shown=True)
    with display.bars:
        display.begin(HOSTILE)
        display.show(SimpleNamespace(robust=1, y=[0, 1], share_done=0.5))  # type: ignore[arg-type]
        display.say(HOSTILE)
    assert_harmless(capsys.readouterr().err)


@pytest.mark.usefixtures("a_terminal")
def test_the_bar_of_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    with share_bars(Terminal(stderr=True)) as bars:
        bars.add_task(HOSTILE, total=2, completed=1)
    assert_harmless(capsys.readouterr().err)


def test_nobody_else_talks_to_the_terminal() -> None:
    """A bare console of rich would read markup and pass escape sequences on."""
    source = Path(__file__).parents[2] / "src/atlas"
    bare = [p.name for p in source.rglob("*.py") if re.search(r"\bConsole\(", p.read_text())]
    assert not bare
    columns = [
        f"{path.name}: {line.strip()}"
        for path in source.rglob("*.py")
        for line in path.read_text().splitlines()
        if "TextColumn(" in line and "task.description" in line and "markup=False" not in line
    ]
    assert not columns
