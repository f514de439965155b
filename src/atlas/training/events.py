"""Scalars for TensorBoard, in files that tell nothing of the machine."""

from __future__ import annotations

import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

from atlas.disk import disk_error

NAME = "events.out.tfevents."


class Events:
    """A file of events.

    torch's own writer puts the host's name into that of its file, which would go wherever the run goes, and
    the time, by which TensorBoard puts the files of one run in order: wrongly if the clock went back. Here
    they are numbered.
    """

    def __init__(self, folder: Path, step: int) -> None:
        """A new file beside those of earlier starts, whose events from `step` on no longer count."""
        folder.mkdir(exist_ok=True)
        ends = [path.name.removeprefix(NAME) for path in folder.iterdir()]
        last = max((int(end) for end in ends if end.isdecimal()), default=0)
        self.path = folder / f"{NAME}{last + 1:06d}"
        self.file = self.path.open("xb", buffering=0)  # so that nothing is left to fail when it is closed
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
