"""Files known by their content: length and digest are tested before anybody parses them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from atlas.errors import DataError

GET_AGAIN = "nothing was changed; move the file away and run `atlas data fetch`, or point to another folder"


@dataclass(frozen=True)
class File:
    """A file's name, its length in bytes, and its published MD5 or its sha256 (which is used if known)."""

    name: str
    size: int
    md5: str = ""
    sha256: str = ""

    @property
    def digest(self) -> str:
        """The digest that is tested, with its kind: "sha256:..." or "md5:..."."""
        return f"sha256:{self.sha256}" if self.sha256 else f"md5:{self.md5}"

    def mismatch(self, data: bytes) -> str:
        """What is wrong with `data`, or "" if it is this file to the bit."""
        if len(data) != self.size:
            return f"expected {self.size} bytes, found {len(data)}"
        kind, _, expected = self.digest.partition(":")
        found = hashlib.new(kind, data, usedforsecurity=False).hexdigest()
        return "" if found == expected else f"expected {kind} {expected}, found {found}"

    def check(self, data: bytes, where: str) -> bytes:
        """`data` if it is this file, to the bit."""
        if problem := self.mismatch(data):
            raise DataError(f"{where}: {problem}; {GET_AGAIN}")
        return data

    def check_size(self, size: int, where: str) -> None:
        """Refuse a wrong length before anything is read."""
        if size != self.size:
            raise DataError(f"{where}: expected {self.size} bytes, found {size}; {GET_AGAIN}")

    def read(self, path: Path) -> bytes:
        """The content of `path`, its length tested before it is read and its digest after."""
        try:
            self.check_size(path.stat().st_size, str(path))
            return self.check(path.read_bytes(), str(path))
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); {GET_AGAIN}") from error
