"""A step under torch's profiler: a trace to look at, the operators that take most, and the memory taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from atlas.bench.quiet import unheard

STEP = "atlas: step"
"""The name of the measured step in a trace."""
ALLOCATION = "[memory]"
"""What the profiler calls memory that is taken, or given back where the number is negative."""


@dataclass(frozen=True)
class Operator:
    """One kind of operation: how often it ran, and the time in it but not in those that it calls."""

    name: str
    calls: int
    ms: float
    share: float
    """Of the whole step."""


def profiled(run: Callable[[], None], *, memory: bool = False) -> profile:
    """One run of the step; for its memory, after another that the profiler sees too.

    It does not hear of memory being given back that was taken before it started to listen, the gradients of
    the step before for example.
    """
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    listening = profile(activities=kinds, profile_memory=memory)
    with unheard(), listening:
        if memory:
            run()
        with record_function(STEP):
            run()
    return listening


def allocated_peak(run: Callable[[], None]) -> int:
    """How many bytes of the CPU's memory a step holds at its peak, beyond what was held before it."""
    recorded = profiled(run, memory=True).profiler
    assert recorded is not None
    events: Any = recorded.kineto_results.events()  # type: ignore[union-attr]
    ours = [event for event in events if event.device_type().name == "CPU"]
    began, now, peak = next(event.start_ns() for event in ours if event.name() == STEP), 0, 0
    taken = [event for event in ours if event.name() == ALLOCATION]
    for event in sorted(taken, key=lambda e: int(e.start_ns())):
        if event.start_ns() >= began:
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def trace(run: Callable[[], None], path: Path) -> list[Operator]:
    """Write a Chrome trace of a step, for ui.perfetto.dev; its operators, the dearest first."""
    run()  # the first one fills caches
    recorded = profiled(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    with unheard():
        recorded.export_chrome_trace(str(path))
    averages = [e for e in recorded.key_averages() if e.key != STEP]
    total = sum(_time(e) for e in averages) or 1.0
    found = [Operator(e.key, e.count, _time(e) / 1e3, _time(e) / total) for e in averages]
    return sorted(found, key=lambda operator: -operator.ms)


def _time(average: object) -> float:
    """Microseconds: on a GPU where the operator ran on one."""
    device, cpu = average.self_device_time_total, average.self_cpu_time_total  # type: ignore[attr-defined]
    return float(device or cpu)
