"""Files that are whole or not there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from atlas.errors import DiskError

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
