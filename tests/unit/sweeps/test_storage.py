"""Where a study may be kept, and that a password stays where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from atlas.errors import UsageError
from atlas.sweeps import queue


@pytest.mark.parametrize("url", ["mysql://a@b/c", "runs/study.db", "sqlite:///study.db"])
def test_only_postgresql_is_taken(url: str) -> None:
    with pytest.raises(UsageError, match="must be postgresql://"):
        queue.check_url(url, hidden=False)


@pytest.mark.parametrize(
    "url", ["postgresql://ann:secret@host/db", "postgresql://ann@host/db?password=secret"]
)
def test_a_password_on_the_command_line_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="PGPASSWORD") as refused:
        queue.check_url(url, hidden=False)
    assert "secret" not in str(refused.value)
    assert queue.check_url(url, hidden=True) == url


def opened(url: str | None, folder: Path) -> None:
    with queue.translate_db_errors(url):
        queue.open_storage(url, folder)


def test_a_server_that_is_not_there_is_said_without_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(queue.StorageError) as refused:
        opened("postgresql://ann:secret@127.0.0.1:1/db", tmp_path)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "127.0.0.1" in str(refused.value)


@pytest.mark.parametrize("name", ["a b", "a?b", "a#b", "a%41b", "a{x}b", "ä"])
def test_a_folder_of_any_name_will_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    opened(None, tmp_path / name)
    assert (tmp_path / name / "study.db").exists()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_bytes(b"not a database" * 100)
    with pytest.raises(queue.StorageError, match="file is not a database"):
        opened(None, tmp_path)
