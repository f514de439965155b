"""What `--help` shows: every command, with its words whole on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from atlas.cli.app import app
from tests.unit.cli.command import atlas

WIDTH, ROOM = 80, 30


def commands(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """The words of every command below this one."""
    below = getattr(command, "commands", {})
    if path and not below:
        yield path
    for name, each in below.items():
        if not each.hidden:
            yield from commands(each, *path, name)


ALL = sorted(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_words_have_room(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second name for a flag, or a long placeholder, squeezes the explanations of all options."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", WIDTH)
    assert atlas(monkeypatch, *path, "--help") == 0
    text = capsys.readouterr().out
    (line,) = (line for line in text.splitlines() if "Show this message and exit." in line)
    assert WIDTH - line.index("Show") >= ROOM


@pytest.mark.parametrize("words", [(), ("step", "--model", "cnn"), ("--help",)], ids=" ".join)
def test_bench_says_where_it_is_now(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert atlas(monkeypatch, "bench", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "python -m benchmarks" in line
    atlas(monkeypatch, "--help")
    assert "bench" not in capsys.readouterr().out
