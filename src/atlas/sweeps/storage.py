"""Where a study is kept: SQLite in the sweep's folder, or a PostgreSQL server."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import SQLAlchemyError

from atlas.errors import AtlasError, LockError, UsageError
from atlas.files import locked, require_empty_dir, write_atomic

SCHEMES = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
BEAT_SECONDS, GRACE_SECONDS = 60, 600
"""A worker gives a sign of life this often; one of another folder that gave none for so long is taken for
dead. Within one folder its lock tells at once."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


class StorageError(AtlasError):
    """The study's storage cannot be reached or refuses."""

    exit_code = 6


def checked(url: str, *, hidden: bool) -> str:
    """The URL, unless it is none of PostgreSQL, or has a password and is not `hidden` from other users."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise UsageError(
            f"--storage is no address: {error}; wanted postgresql://USER@HOST/DATABASE"
        ) from None
    if parts.scheme not in SCHEMES:
        raise UsageError(
            f"--storage begins with {parts.scheme or 'no scheme'!r}; wanted postgresql://USER@HOST/DATABASE, "
            "or leave it away for SQLite in the sweep's folder"
        )
    if _passwords(url) and not hidden:
        raise UsageError(
            "--storage holds a password, which everybody on this machine can read on the command line; leave "
            "it away there and set PGPASSWORD, keep it in ~/.pgpass, or set ATLAS_STORAGE to the whole URL"
        )
    return url


def own_url(folder: Path) -> str:
    """The URL of the database in the sweep's own folder."""
    return f"sqlite:///{quote(str(folder))}/{DATABASE}"


def open_storage(url: str | None, folder: Path) -> RDBStorage:
    """The storage at this URL, or the file `study.db` of the folder."""
    if url is None:
        with waited_for(folder):
            return _open(own_url(folder), {"connect_args": {"timeout": 60}})
    scheme, _, rest = url.partition("://")
    rest = rest.replace("{", "%7B").replace("}", "%7D")  # Optuna takes braces for a place to fill in
    server = f"{SCHEMES[scheme]}://{rest}", {"pool_pre_ping": True}
    try:
        return _open(*server)
    except StorageError:  # two workers that make the tables at once get into each other's way
        time.sleep(2.0)
        return _open(*server)


def _open(url: str, engine: dict[str, Any]) -> RDBStorage:
    beats: Any = {"heartbeat_interval": BEAT_SECONDS, "grace_period": GRACE_SECONDS}
    with warnings.catch_warnings(), translate_db_errors(url):
        warnings.simplefilter("ignore", ExperimentalWarning)
        try:
            return RDBStorage(url, engine_kwargs=engine, **beats)
        except ImportError as error:
            raise UsageError("PostgreSQL needs psycopg: pip install 'atlas-robust[sweep]'") from error


def _passwords(url: str) -> set[str]:
    """The passwords in a URL, as they are written and as they are meant."""
    parts = urlsplit(url)
    written = {parts.password, *parse_qs(parts.query).get("password", [])} - {None, ""}
    return {form for word in written if word for form in (word, unquote(word))}


@contextmanager
def translate_db_errors(url: str) -> Iterator[None]:
    """What the database says against us in one line, without the password."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        cause = getattr(error.__cause__, "orig", None) or getattr(error, "orig", None) or error
        said = " ".join(str(cause).split())
        for password in _passwords(url):
            said = said.replace(password, "***")
        raise StorageError(f"the study's storage cannot be used: {said}; look after it, then go on") from None


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
        require_empty_dir(folder)


def identity(folder: Path) -> str:
    """A name for the folder that is the same on every machine that shares it."""
    path = folder / IDENTITY
    if not path.exists():
        write_atomic(path, uuid.uuid4().hex.encode())
    return path.read_text()
