"""Download a named data set over https: resumable, and verified before the file gets its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from filelock import lock_descriptor

from atlas.data.store import SOURCES, File, data_root, present, verify
from atlas.errors import DataError, DiskError, LockError, choose
from atlas.files import sync_folder

TRIES = 3  # for each mirror
TIMEOUT = 30.0
_CHUNK = 1 << 18

Report = Callable[[File, int], None]


class _Refused(Exception):
    """A mirror that offers something else, or nothing: there is no point in trying it again."""


def fetch(
    name: str,
    root: Path | str | None = None,
    report: Report = lambda file, done: None,
    mirrors: Sequence[str] | None = None,
) -> list[Path]:
    """The files of the set, downloaded unless a form of it exists; an existing file is never replaced.

    `report(file, done)` is told how many bytes of a file have come. `mirrors`: addresses that end in a slash,
    instead of those in the table; they are tried in order.
    """
    source = choose("data set", name, SOURCES)
    folder = data_root(name, root)
    if not (present(name, True, folder) and present(name, False, folder)):
        form = source.forms[0]
        below = folder if form.tar else folder / form.folder
        for file in (form.tar,) if form.tar else form.gz:
            if not (below / file.name).exists():
                _download(below / file.name, file, source.mirrors if mirrors is None else mirrors, report)
    checked = list(verify(name, folder))
    for path, _, problem in checked:
        if problem:
            raise DataError(f"{path}: {problem}; nothing was changed: move it away, then fetch again")
    return [path for path, _, _ in checked]


def _download(path: Path, file: File, mirrors: Sequence[str], report: Report) -> None:
    part = path.with_name(path.name + ".part")
    reasons = []
    with _alone(part) as out:
        for mirror in mirrors:
            if not (reason := _get(mirror + file.name, out, file, report)):
                os.fsync(out.fileno())
                part.replace(path)
                sync_folder(path.parent)
                return
            reasons.append(f"\n  {mirror}{file.name}: {reason}")
        if out.tell() == 0:
            part.unlink()
    raise DataError(
        f"{file.name}: no mirror gave it (expected {file.size} bytes, {file.digest}):{''.join(reasons)}\n"
        f"Run the command again to resume, or put the file there yourself: {path}"
    )


@contextmanager
def _alone(part: Path) -> Iterator[IO[bytes]]:
    """`part`, open to append, for this process alone."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("a+b") as out:
            if not lock_descriptor(out.fileno(), blocking=False):
                raise LockError(f"{part}: another process is downloading it; wait for it to end")
            if not part.exists() or not os.path.samestat(os.fstat(out.fileno()), part.stat()):
                raise LockError(f"{part}: another process has just finished it; run the command again")
            yield out
    except OSError as error:
        raise DiskError(f"{part}: cannot be written ({error.strerror})") from error


def _get(url: str, out: IO[bytes], file: File, report: Report) -> str:
    """Complete `out` from this address, in up to TRIES connections; why that failed, or ""."""
    reason = ""
    for _ in range(TRIES):
        start = out.seek(0, os.SEEK_END)
        try:
            if start < file.size:
                _append(url, start, out, file, report)
            out.seek(0)
            reason = file.mismatch(out.read())
            if not reason:
                return ""
            if out.tell() >= file.size:
                out.truncate(0)
                if start == 0:  # else the wrong bytes may have come from another mirror
                    return reason
        except _Refused as error:
            return str(error)
        except HTTPError as error:
            reason = f"HTTP {error.code} {error.reason}"
            if error.code < 500:
                return reason
        except (OSError, HTTPException, ValueError) as error:
            reason = str(error)
    return reason


def _append(url: str, start: int, out: IO[bytes], file: File, report: Report) -> None:
    _require_secure(url)
    headers = {"User-Agent": "atlas-robust"} | ({"Range": f"bytes={start}-"} if start else {})
    with build_opener(_SecureRedirects()).open(Request(url, headers=headers), timeout=TIMEOUT) as response:
        if response.status != 206:
            start = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            raise _Refused("the server resumed at another offset than requested")
        if response.length is not None and start + response.length != file.size:
            raise _Refused(f"expected {file.size} bytes, found {start + response.length}")
        out.truncate(start)
        while chunk := response.read(_CHUNK):
            start += len(chunk)
            if start > file.size:
                out.truncate(0)
                raise _Refused(f"expected {file.size} bytes, found more")
            try:
                out.write(chunk)
                out.flush()
            except OSError as error:
                raise DiskError(f"{out.name}: cannot be written ({error.strerror})") from error
            report(file, start)


def _require_secure(url: str) -> None:
    """Refuse any address but https, and http to this machine."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname == "127.0.0.1"):
        raise _Refused("expected an https address")


class _SecureRedirects(HTTPRedirectHandler):
    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """Follow, but never from https to anything else."""
        _require_secure(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)
