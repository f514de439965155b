"""Files that are whole or not there, and folders with one worker at a time."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import lock_descriptor

from atlas.errors import DiskError, LockError, UsageError
from atlas.terminal import one_line

_PART = re.compile(r"\..+\.\d+\.atlas\.part")
"""The name of a file that is being written: see `part_of`."""
ORIGIN = "origin.json"
"""Command and commit, which `atlas reproduce` writes into a folder before all else."""
_HELD: set[Path] = set()
"""Folders in which this process works alone."""


def write_atomic(path: Path, data: bytes) -> None:
    """Write the whole file or leave what was there: temporary file, fsync, rename, fsync of the folder.

    A device or a pipe, such as /dev/stdout, is written to: a rename would put a file in its place.
    """
    part = part_of(path)
    with disk_errors(path, len(data)):
        if path.exists() and not (path.is_file() or path.is_dir()):
            path.write_bytes(data)
            return
        try:
            if path.parent not in _HELD:  # one that has vanished is not made anew, with a part of it all
                path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            sync_folder(path.parent)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def part_of(path: Path) -> Path:
    """The temporary file that becomes `path` once it is whole.

    It names the process, because another one may write the same file, and this package, because the next
    worker in the folder deletes what a killed one has left, and nothing else.
    """
    return path.with_name(f".{path.name}.{os.getpid()}.atlas.part")


@contextmanager
def disk_errors(path: Path, needed: int = 0) -> Iterator[None]:
    """Say of a write of so many bytes that fails how much is free, and what to do."""
    try:
        yield
    except OSError as error:
        free = "unknown"
        with suppress(OSError):
            free = f"{shutil.disk_usage(path.parent).free:,} bytes"
        raise DiskError(
            f"cannot write {path}: {error.strerror}; needed {needed:,} bytes, free: {free}. What was there "
            "before is intact: free some space or repair the folder, then resume."
        ) from error


def require_room(folder: Path, needed: int) -> None:
    """Refuse a folder whose disk cannot take so many bytes, before any work is done for it."""
    if shutil.disk_usage(folder).free < needed:
        with disk_errors(folder / "trial", needed):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut. Windows cannot open folders, and needs no such call."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Work alone in the folder (created if needed). The lock ends with the process, however that ends.

    `check` raises if the folder holds something that is not ours. It is called before anything in an existing
    folder is changed, and again under the lock, because another process may have started there in between.
    The file `lock` names its holder only while it is held: folders are shared with others, whom the names of
    machines do not concern. A folder that was created here is removed if an error leaves nothing in it.
    """
    if one_line(str(folder)) != str(folder):
        raise UsageError(f"the folder {str(folder)!r} has control characters in its name; choose another")
    try:
        new = not folder.exists()
        if not new and not (folder / "lock").exists():
            check()
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise DiskError(f"cannot work in {folder}: {error.strerror}; choose another folder") from error
    try:
        _take(folder, handle)
        check()
        _HELD.add(folder)
        try:
            with suppress(OSError):  # on a full disk the lock holds too, without a name
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
            for part in folder.iterdir():
                if _PART.fullmatch(part.name):
                    part.unlink(missing_ok=True)
            yield
        except Exception:
            with suppress(OSError):  # the folder may be what the error is about
                if new and [path.name for path in folder.iterdir()] == ["lock"]:
                    (folder / "lock").unlink()
                    folder.rmdir()
            raise
        finally:
            _HELD.discard(folder)
            with suppress(OSError):  # a name that stays in the file says nothing: the lock itself is gone
                os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def require_empty_dir(folder: Path, ours: Collection[str] = ()) -> None:
    """Refuse to begin in a folder with files that are not `ours`, among which ours would be lost."""
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    if foreign := [
        name for name in files if not name.startswith(".") and name not in ("lock", ORIGIN, *ours)
    ]:
        more = ", ..." if len(foreign) > 3 else ""
        raise UsageError(
            f"{folder} holds other files ({', '.join(foreign[:3])}{more}); choose a new or an empty one"
        )


def in_use(folder: Path) -> bool:
    """Whether a process works in the folder right now."""
    try:
        refuse_in_use(folder)
    except LockError:
        return True
    return False


def refuse_in_use(folder: Path) -> None:
    """Refuse a folder in which a process works right now. Changes nothing there."""
    try:
        handle = os.open(folder / "lock", os.O_RDWR)
    except OSError:
        return
    try:
        _take(folder, handle)
    finally:
        os.close(handle)


def _take(folder: Path, handle: int) -> None:
    try:
        if lock_descriptor(handle, blocking=False):
            return
    except OSError as error:
        raise DiskError(f"cannot lock {folder}: {error.strerror}; choose another folder") from error
    holder = ""
    with suppress(OSError):  # Windows does not let others read what is locked
        holder = os.read(handle, 200).decode(errors="replace").strip()
    raise LockError(
        f"{folder} is in use by {holder or 'another process'}; wait for it, or choose another folder"
    )
