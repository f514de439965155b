"""Who works on what, within one folder: locks that go with their process, however it ends."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atlas.disk import locked, refuse_strangers, write_atomic
from atlas.errors import LockError

DATABASE, IDENTITY = "study.db", "folder.id"
"""A sweep's folder has at least one of them."""
PATIENCE = 120.0
"""Seconds to wait for another worker that reads or writes the sweep's files, which takes it a moment."""


@contextmanager
def waited_for(folder: Path) -> Iterator[None]:
    """`locked`, once whoever works there has gone."""
    deadline = time.monotonic() + PATIENCE
    while True:
        lock = locked(folder)
        try:
            lock.__enter__()
            break
        except LockError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def check_folder(folder: Path) -> None:
    """Refuse a folder with foreign files, before anything in it is changed."""
    if folder.is_dir() and not any((folder / name).exists() for name in (DATABASE, IDENTITY)):
        refuse_strangers(folder)


def identity(folder: Path) -> str:
    """A name for the folder that is the same on every machine that shares it."""
    path = folder / IDENTITY
    if not path.exists():
        write_atomic(path, uuid.uuid4().hex.encode())
    return path.read_text()
