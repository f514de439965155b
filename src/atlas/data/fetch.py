"""Download a named data set over https: resumable, and verified before the file gets its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException, HTTPMessage, HTTPResponse
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
_RANGE_NOT_SATISFIABLE = 416

Report = Callable[[File, int], None]


class _Refused(Exception):
    """A mirror that offers something else, or nothing."""


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
            _download(below / file.name, file, source.mirrors if mirrors is None else mirrors, report)
    checked = list(verify(name, folder))
    for path, _, problem in checked:
        if problem:
            raise DataError(f"{path}: {problem}; nothing was changed: move it away, then fetch again")
    return [path for path, _, _ in checked]


def _download(path: Path, file: File, mirrors: Sequence[str], report: Report) -> None:
    if path.exists():
        return
    part = path.with_name(path.name + ".part")
    reasons = []
    with _writing(part) as out:
        for mirror in mirrors:
            try:
                _get(mirror + file.name, part, out, file, report)
            except _Refused as reason:
                reasons.append(f"\n  {mirror}{file.name}: {reason}")
                continue
            os.fsync(out.fileno())
            os.replace(part, path)
            sync_folder(path.parent)
            return
        if _size(out) == 0:
            part.unlink()
    raise DataError(
        f"{file.name}: no mirror gave it (expected {file.size} bytes, {file.digest}):{''.join(reasons)}\n"
        f"Run the command again to resume, or put the file there yourself: {path}"
    )


@contextmanager
def _writing(part: Path) -> Iterator[IO[bytes]]:
    """`part`, open to append, for this process alone."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as out:
            if not lock_descriptor(out.fileno(), blocking=False):
                raise LockError(f"{part}: another process is downloading it; wait for it to end")
            if not part.exists() or not os.path.samestat(os.fstat(out.fileno()), part.stat()):
                raise LockError(f"{part}: another process has just finished it; run the command again")
            yield out
    except OSError as error:
        raise DiskError(f"{part}: cannot be written ({error.strerror})") from error


def _get(url: str, part: Path, out: IO[bytes], file: File, report: Report) -> None:
    """Complete `out` from this address, in up to TRIES connections, then verify it."""
    reason = ""
    for _ in range(TRIES):
        if _size(out) > file.size:
            out.truncate(0)
        start = _size(out)
        try:
            _append(url, start, out, file, report)
        except HTTPError as error:
            reason = f"HTTP {error.code} {error.reason}"
            if error.code == _RANGE_NOT_SATISFIABLE:
                out.truncate(0)
            elif error.code < 500:
                break
        except (OSError, HTTPException, ValueError) as error:
            reason = f"{error}"
        else:
            reason = file.mismatch(part.read_bytes())
            if not reason:
                return
            if _size(out) == file.size:
                out.truncate(0)
                if start == 0:  # else the wrong bytes may have come from another mirror: try from the start
                    break
    raise _Refused(reason)


def _append(url: str, start: int, out: IO[bytes], file: File, report: Report) -> None:
    if start == file.size:
        return
    _require_secure(url)
    headers = {"User-Agent": "atlas-robust"} | ({"Range": f"bytes={start}-"} if start else {})
    with build_opener(_SecureRedirects()).open(Request(url, headers=headers), timeout=TIMEOUT) as response:
        done = _agree(response, start, out, file)
        while chunk := response.read(_CHUNK):
            done += len(chunk)
            if done > file.size:
                out.truncate(0)
                raise _Refused(f"expected {file.size} bytes, found more")
            _write(out, chunk)
            report(file, done)


def _agree(response: HTTPResponse, start: int, out: IO[bytes], file: File) -> int:
    """Where the bytes belong: at `start` if the server resumes there, else at 0."""
    if response.status != 206:
        start = 0
        out.truncate(0)
    elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        out.truncate(0)
        raise OSError("the server resumed at another offset than requested")
    if response.length is not None and start + response.length != file.size:
        raise _Refused(f"expected {file.size} bytes, found {start + response.length}")
    return start


def _write(out: IO[bytes], chunk: bytes) -> None:
    try:
        out.write(chunk)
        out.flush()
    except OSError as error:
        raise DiskError(f"{out.name}: cannot be written ({error.strerror})") from error


def _size(out: IO[bytes]) -> int:
    return os.fstat(out.fileno()).st_size


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
