"""What a run writes down as it goes: metrics as JSON lines and TensorBoard events, and times."""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from atlas.errors import CheckpointError
from atlas.files import disk_error
from atlas.runs import RunFolder

Record = dict[str, Any]
CHECKSUM = "crc"
"""The last value of a line of metrics: the CRC-32 of the line without it."""
RATES = ("train_clean", "train_adv", "val_clean", "val_robust", "val_majority", "val_balanced")


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
        self.seconds = read_seconds(self.folder.timing)
        self.events = Events(self.folder.tensorboard, step)

    def _cut(self, path: Path, size: int) -> list[Record]:
        data = path.read_bytes() if path.exists() else b""
        if len(data) < size:
            raise CheckpointError(
                f"{path} has {len(data)} bytes; the saved state knows {size}: start the run anew"
            )
        if len(data) > size:
            os.truncate(path, size)
        return _checked(path, data[:size].splitlines())

    def add(self, record: Record) -> None:
        if record["kind"] == "epoch":
            self.epochs.append(record)
        if self.folder is None or self.events is None:
            return
        self._append(self.folder.metrics, record | {CHECKSUM: _checksum(record)})
        for name, value in record.items():
            if isinstance(value, int | float) and name not in ("epoch", "step"):
                self.events.scalar(f"{record['kind']}/{name}", value, record["step"])

    def time(self, **record: Any) -> None:
        """Write down a time. Nothing depends on it, so what cannot be written is left out."""
        self.seconds += record.get("seconds", 0.0)
        if self.folder is not None:
            line = json.dumps({"at": round(time.time(), 3), **record}).encode() + b"\n"
            with suppress(OSError), self.folder.timing.open("ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    if file.read() != b"\n":  # a crash has torn the line before
                        line = b"\n" + line
                file.write(line)

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
        try:
            with self.folder.metrics.open("rb") as file:
                os.fsync(file.fileno())
                return os.fstat(file.fileno()).st_size
        except OSError as error:
            raise disk_error(self.folder.metrics, 0, error) from error

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.events is not None:
            self.events.close()


def read_metrics(path: Path) -> list[Record]:
    """The records of a `metrics.jsonl`, without a last line that is still being written.

    Raises:
        CheckpointError: if the file cannot be read, or a line was changed after it was written.
    """
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    return _checked(path, data[: data.rfind(b"\n") + 1].splitlines())


def read_times(path: Path) -> list[Record]:
    """The records of a `timing.jsonl`. Nothing depends on them, so lines that cannot be read are left out."""
    records = []
    with suppress(OSError):
        for line in path.read_bytes().splitlines():
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                records += [record] if isinstance(record, dict) else []
    return records


def read_seconds(path: Path) -> float:
    """The seconds in a `timing.jsonl`."""
    times = (record.get("seconds", 0.0) for record in read_times(path))
    return sum(t for t in times if isinstance(t, int | float) and 0 <= t < math.inf)


def _checked(path: Path, lines: list[bytes]) -> list[Record]:
    """The records of these lines. Lines of versions before 0.2 have no checksum, and none comes after one."""
    records, checksums = list[Record](), False
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError(f"expected a table, got {str(record)[:50]}")
            checksum = record.pop(CHECKSUM, None)
            checksums = checksums or checksum is not None
            if checksums and checksum != _checksum(record):
                raise ValueError("its checksum does not match")
            _check_values(record)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{path} is damaged in line {number}: {error}. Restore the file from a copy, or start again "
                "in another folder"
            ) from error
        records.append(record)
    return records


def _checksum(record: Record) -> str:
    return f"{zlib.crc32(json.dumps(record).encode()):08x}"


def _check_values(record: Record) -> None:
    if record.get("kind") not in ("probe", "epoch"):
        raise ValueError(f"kind must be probe or epoch, got {record.get('kind')!r}")
    for name in RATES:
        value = record.get(name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError(f"{name} must be between 0 and 1, got {value!r}")


NAME = "events.out.tfevents."


class Events:
    """A file of events.

    torch's own writer puts the host's name into that of its file, which would go wherever the run goes, and
    the time, by which TensorBoard puts the files of one run in order: wrongly if the clock went back. Here
    they are numbered.
    """

    def __init__(self, folder: Path, step: int) -> None:
        """A new file beside those of earlier starts, whose events from `step` on no longer count."""
        try:
            folder.mkdir(exist_ok=True)
            ends = [path.name.removeprefix(NAME) for path in folder.iterdir()]
            last = max((int(end) for end in ends if end.isdecimal()), default=0)
            self.path = folder / f"{NAME}{last + 1:06d}"
            self.file = self.path.open("xb", buffering=0)  # so that nothing is left to fail when it is closed
        except OSError as error:
            raise disk_error(folder, 0, error) from error
        self.records = RecordWriter(self.file)
        self._add(Event(step=step, file_version="brain.Event:2"))
        self._add(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def scalar(self, name: str, value: float, step: int) -> None:
        self._add(Event(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)])))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        data = event.SerializeToString()
        try:
            self.records.write(data)
        except OSError as error:
            raise disk_error(self.path, len(data), error) from error

    def close(self) -> None:
        self.file.close()
