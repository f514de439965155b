"""Files that are whole or not there, and folders with one worker at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atlas.errors import DiskError, LockError

PART = ".part"
"""The ending of a file that is being written."""


def write_atomic(path: Path, data: bytes) -> None:
    """Write the whole file or leave what was there: temporary file, fsync, rename, fsync of the folder."""
    part = path.with_name(f".{path.name}{PART}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise _disk_error(path, part, len(data), error) from error


def _disk_error(path: Path, part: Path, needed: int, error: OSError) -> DiskError:
    try:
        part.unlink(missing_ok=True)
        free = f"{shutil.disk_usage(path.parent).free:,} bytes"
    except OSError:
        free = "unknown"
    return DiskError(
        f"cannot write {path}: {error.strerror}; needed {needed:,} bytes, free: {free}. What was there "
        "before is intact: make room or mend the folder, then resume."
    )


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Work alone in the folder (made if need be). The lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise DiskError(f"cannot work in {folder}: {error.strerror}; choose another folder") from error
    try:
        _take(folder, handle)
        for part in folder.glob(f".*{PART}"):
            part.unlink(missing_ok=True)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _take(folder: Path, handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
        raise LockError(f"{folder} is in use by {holder}; wait for it, or choose another folder") from error
    os.ftruncate(handle, 0)
    os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
