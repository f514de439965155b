"""`atlas data list | fetch | verify`: what they print and how they end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from atlas.cli.data import app
from atlas.data.store import SOURCES
from atlas.errors import DataError, UsageError


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def test_list_shows_every_set_and_whether_it_is_here(idx_toy: Any) -> None:
    assert "no" in line(run("list", "--root", idx_toy.root), "idx-toy")
    idx_toy.write("gz")
    result = run("list", "--root", idx_toy.root)
    assert result.exit_code == 0
    assert all(name in result.output for name in SOURCES)
    assert "yes" in line(result, "idx-toy")
    assert "yes" in line(result, "mnist-mini")
    assert str(idx_toy.root) in result.output


def line(result: Result, word: str) -> str:
    return next(row for row in result.output.splitlines() if f" {word} " in row)


def test_verify_says_ok_file_by_file(idx_toy: Any) -> None:
    idx_toy.write("open")
    result = run("verify", "idx-toy", "--root", idx_toy.root)
    assert result.exit_code == 0
    assert result.output.count(" ok ") == 4
    assert "idx-toy" in result.output.splitlines()[-1]


def test_verify_of_an_altered_file_shows_the_table_and_fails(idx_toy: Any, snapshot: Any) -> None:
    paths = idx_toy.write("open")
    paths[3].write_bytes(bytes(18))
    before = snapshot()
    result = run("verify", "idx-toy", "--root", idx_toy.root)
    assert isinstance(result.exception, DataError)
    assert result.output.count(" ok ") == 3
    for words in (f"{paths[3]}: expected sha256 ", "nothing was changed", "atlas data fetch idx-toy"):
        assert words in str(result.exception)
    assert snapshot() == before


def test_a_truncated_file_ends_the_command_with_exit_code_3(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for file in SOURCES["mnist"].forms[0].train + SOURCES["mnist"].forms[0].test:
        (raw / file.name).write_bytes(bytes(100))
    command = [sys.executable, "-m", "atlas", "data", "verify", "mnist", "--root", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 3
    assert f"{raw / 'train-images-idx3-ubyte'}: expected 47040016 bytes, found 100" in result.stderr
    assert "Traceback" not in result.stderr


def test_verify_of_nothing_says_what_is_missing(tmp_path: Path) -> None:
    result = run("verify", "cifar100", "--root", tmp_path)
    assert isinstance(result.exception, DataError)
    assert "cifar-100-python" in str(result.exception)


def test_fetch_says_where_the_files_are(idx_toy: Any) -> None:
    paths = idx_toy.write("gz")
    result = run("fetch", "idx-toy", "--root", idx_toy.root)
    assert result.exit_code == 0
    assert all(str(path) in result.output for path in paths)


@pytest.mark.parametrize("command", ["fetch", "verify"])
def test_a_wrong_name_is_an_error_of_usage(command: str) -> None:
    result = run(command, "fashon-mnist")
    assert isinstance(result.exception, UsageError)
    assert "did you mean 'fashion-mnist'" in str(result.exception)


@pytest.mark.parametrize("command", ["list", "fetch", "verify"])
def test_help_teaches_with_an_example(command: str) -> None:
    assert f"Example: atlas data {command}" in run(command, "--help").output
