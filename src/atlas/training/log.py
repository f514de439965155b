"""What a run writes down as it goes: metrics as JSON lines and TensorBoard events, and times."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from atlas.disk import disk_error
from atlas.errors import CheckpointError
from atlas.training.events import Events
from atlas.training.folder import RunFolder

Record = dict[str, Any]


class Log:
    """Records in memory and, where there is a folder, in its files.

    A record has "kind" ("probe" or "epoch"), "epoch", "step" and numbers. What `metrics.jsonl` holds
    depends only on the configuration; seconds go to `timing.jsonl`.
    """

    def __init__(self, folder: RunFolder | None) -> None:
        self.folder = folder
        self.epochs: list[Record] = []
        self.seconds = 0.0
        """Time spent in epochs so far, over all starts of the run."""
        self.events: Events | None = None

    def open(self, size: int, step: int) -> None:
        """Go on after the first `size` bytes of the metrics: later lines belong to steps to be redone."""
        if self.folder is None:
            return
        self.epochs = [r for r in self._cut(self.folder.metrics, size) if r["kind"] == "epoch"]
        self.seconds = sum(r.get("seconds", 0.0) for r in self._whole_lines(self.folder.timing))
        self.events = Events(self.folder.tensorboard, step)

    def _cut(self, path: Path, size: int) -> list[Record]:
        data = path.read_bytes() if path.exists() else b""
        if len(data) < size:
            raise CheckpointError(
                f"{path} has {len(data)} bytes; the saved state knows {size}: start the run anew"
            )
        if len(data) > size:
            os.truncate(path, size)
        return [_record(path, line) for line in data[:size].splitlines()]

    def _whole_lines(self, path: Path) -> list[Record]:
        """The records of a file whose last line a crash may have torn; that line is cut off."""
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        return [_record(path, line) for line in whole.splitlines()]

    def add(self, record: Record) -> None:
        if record["kind"] == "epoch":
            self.epochs.append(record)
        if self.folder is None or self.events is None:
            return
        self._append(self.folder.metrics, record)
        for name, value in record.items():
            if isinstance(value, int | float) and name not in ("epoch", "step"):
                self.events.scalar(f"{record['kind']}/{name}", value, record["step"])

    def time(self, **record: Any) -> None:
        self.seconds += record.get("seconds", 0.0)
        if self.folder is not None:
            self._append(self.folder.timing, {"at": round(time.time(), 3), **record})

    def _append(self, path: Path, record: Record) -> None:
        line = json.dumps(record) + "\n"
        try:
            with path.open("a") as file:
                file.write(line)
        except OSError as error:
            raise disk_error(path, len(line), error) from error

    def flush(self) -> int:
        """Bring all to disk; how many bytes of metrics there are."""
        if self.folder is None or not self.folder.metrics.exists():
            return 0
        with self.folder.metrics.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.events is not None:
            self.events.close()


def _record(path: Path, line: bytes) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}; start the run anew") from error
    if not isinstance(record, dict):
        raise CheckpointError(f"{path} is damaged: a line is {str(record)[:50]}; start the run anew")
    return record
