"""Where a study is kept: SQLite in the sweep's folder, or a PostgreSQL server."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import SQLAlchemyError

from atlas.errors import AtlasError, UsageError

SCHEMES = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
BEAT_SECONDS, GRACE_SECONDS = 60, 600
"""A worker gives a sign of life this often; one of another folder that gave none for so long is taken for
dead. Within one folder its lock tells at once."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


class StorageError(AtlasError):
    """The study's storage cannot be reached or refuses."""

    exit_code = 6


def check_url(url: str, *, from_command_line: bool) -> None:
    """Refuse what is no PostgreSQL URL, and a password where others can read it."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise UsageError(
            f"--storage begins with {parts.scheme or 'no scheme'!r}; wanted postgresql://USER@HOST/DATABASE, "
            "or leave it away for SQLite in the sweep's folder"
        )
    if parts.password and from_command_line:
        raise UsageError(
            "--storage holds a password, which everybody on this machine can read on the command line; leave "
            "it away there and set PGPASSWORD, keep it in ~/.pgpass, or set ATLAS_STORAGE to the whole URL"
        )


def open_storage(url: str | None, folder: Path) -> RDBStorage:
    """The storage at this URL, or the file `study.db` of the folder."""
    if url is None:
        folder.mkdir(parents=True, exist_ok=True)
        return _open(f"sqlite:///{folder / 'study.db'}", {"connect_args": {"timeout": 60}})
    scheme, _, rest = url.partition("://")
    return _open(f"{SCHEMES[scheme]}://{rest}", {"pool_pre_ping": True})


def _open(url: str, engine: dict[str, object]) -> RDBStorage:
    with warnings.catch_warnings(), told_plainly(url):
        warnings.simplefilter("ignore", ExperimentalWarning)
        return RDBStorage(
            url, engine_kwargs=engine, heartbeat_interval=BEAT_SECONDS, grace_period=GRACE_SECONDS
        )


@contextmanager
def told_plainly(url: str) -> Iterator[None]:
    """What the database says in one line, without the password."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError, ImportError) as error:
        cause = getattr(error.__cause__, "orig", None) or getattr(error, "orig", None) or error
        said = " ".join(str(cause).split())
        password = urlsplit(url).password
        if password:
            said = said.replace(password, "***")
        raise StorageError(f"the study's storage cannot be used: {said}; look after it, then go on") from None
