"""How much of the machine was busy with something else, while several processes were measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

from atlas.bench.scale import gathered
from atlas.training import Ranks

IDLE = (3, 4)
"""Columns of the first line of /proc/stat in which nothing was done: idle, and waiting for a disk."""


class Elsewhere:
    """From its making on; every rank has one."""

    def __init__(self, ranks: Ranks, stat: Path = Path("/proc/stat")) -> None:
        self.ranks, self.stat = ranks, stat
        self.began = self._now()

    def share(self) -> float | None:
        """Of all cores' time, what no rank has used; None where no system tells. All wait for all."""
        clock, busy, own = (now - before for now, before in zip(self._now(), self.began, strict=True))
        ours = sum(seconds for (seconds,) in gathered(self.ranks, [own]))
        left = (busy - ours) / (clock * (os.cpu_count() or 1))
        return max(0.0, left) if self.stat.exists() else None

    def _now(self) -> tuple[float, float, float]:
        """Seconds by the clock, of work of all cores, and of this process's own."""
        line = self.stat.read_text().splitlines()[0].split()[1:9] if self.stat.exists() else []
        busy = sum(int(ticks) for column, ticks in enumerate(line) if column not in IDLE)
        return time.perf_counter(), busy / os.sysconf("SC_CLK_TCK"), time.process_time()
