"""What a run logs: metrics as JSON lines and TensorBoard events, and times."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from atlas.errors import CheckpointError
from atlas.files import disk_errors
from atlas.runs import CHECKSUM, Record, Run, checked_records, checksum


class Log:
    """Records in memory and, if there is a run's folder, in its files.

    What `metrics.jsonl` holds depends only on the configuration; seconds go to `timing.jsonl`.
    """

    def __init__(self, run: Run | None) -> None:
        self.run = run
        self.epochs: list[Record] = []
        self.seconds = 0.0
        """Time spent in epochs so far, over all starts of the run."""
        self.events: Events | None = None

    def open(self, size: int, step: int) -> None:
        """Continue after the first `size` bytes of the metrics: later lines belong to steps to be redone."""
        if self.run is None:
            return
        path = self.run.metrics_path
        data = path.read_bytes() if path.exists() else b""
        if len(data) < size:
            raise CheckpointError(
                f"{path} must have at least the {size} bytes of the saved state, got {len(data)}: start the "
                "run again"
            )
        if len(data) > size:
            os.truncate(path, size)
        self.epochs = [r for r in checked_records(path, data[:size]) if r["kind"] == "epoch"]
        self.seconds = self.run.seconds
        self.events = Events(self.run.tensorboard, step)

    def add(self, record: Record) -> None:
        if record["kind"] == "epoch":
            self.epochs.append(record)
        if self.run is None or self.events is None:
            return
        path, line = self.run.metrics_path, json.dumps(record | {CHECKSUM: checksum(record)}) + "\n"
        with disk_errors(path, len(line)), path.open("a") as file:
            file.write(line)
        for name, value in record.items():
            if isinstance(value, int | float) and name not in ("epoch", "step"):
                self.events.scalar(f"{record['kind']}/{name}", value, record["step"])

    def time(self, **record: Any) -> None:
        """Log a time. Nothing depends on it, so what cannot be written is left out."""
        self.seconds += record.get("seconds", 0.0)
        if self.run is not None:
            with suppress(OSError), self.run.timing_path.open("a") as file:
                file.write(json.dumps({"at": round(time.time(), 3), **record}) + "\n")

    def flush(self) -> int:
        """Sync the metrics to disk; returns their number of bytes."""
        if self.run is None or not self.run.metrics_path.exists():
            return 0
        with disk_errors(self.run.metrics_path), self.run.metrics_path.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def close(self) -> None:
        if self.events is not None:
            self.events.file.close()


class Events:
    """A file of TensorBoard events; events of earlier files from `step` on no longer count.

    torch's own writer names its file after the host, which would be published with the run, and the time,
    by which TensorBoard orders the files of one run: wrongly if the clock went back. Here they are numbered.
    """

    def __init__(self, folder: Path, step: int) -> None:
        name = "events.out.tfevents."
        with disk_errors(folder):
            folder.mkdir(exist_ok=True)
            ends = [path.name.removeprefix(name) for path in folder.iterdir()]
            last = max((int(end) for end in ends if end.isdecimal()), default=0)
            self.path = folder / f"{name}{last + 1:06d}"
            self.file = self.path.open("xb", buffering=0)  # so that nothing is left to fail when it is closed
        self.records = RecordWriter(self.file)
        self._add(Event(step=step, file_version="brain.Event:2"))
        self._add(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def scalar(self, name: str, value: float, step: int) -> None:
        self._add(Event(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)])))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        data = event.SerializeToString()
        with disk_errors(self.path, len(data)):
            self.records.write(data)
