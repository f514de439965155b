"""How the time of a step grows with the batch and with the width, alone and beside a busy process.

Growth in proportion is a constant time per image, and per FLOP. Every step is timed twice in each repeat:
with a second process that keeps one core busy, and without; what that costs depends on OMP_NUM_THREADS.

  python -m benchmarks growth --model cnn-small --batch 16 --batch 64 --width wrn-10-1 --repeats 1
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from atlas import models
from atlas.distributed.launch import checked_device
from atlas.machine import machine
from benchmarks.command import Repeated, add_shared, at_least, settings_of, shape_of
from benchmarks.equations import cases, count_step
from benchmarks.processes import busy_process
from benchmarks.step import CLASSES, Settings, random_batch, step_of
from benchmarks.tables import Blocks, ChartPanel, TextTable, chart, facts, milliseconds, over, ratio
from benchmarks.timing import Contestant, interleave, seconds_of

BATCHES = (16, 32, 64, 128, 256, 512, 1024)
WIDTHS = ("wrn-16-1", "wrn-16-2", "wrn-16-4", "wrn-16-8")
UNITS: dict[str, tuple[str, Callable[[Mapping[str, Any]], float]]] = {
    "batch": ("ms per image", lambda r: r["batch"]),
    "width": ("ms per GFLOP", lambda r: r["flops"] / 1e9),
}
"""What the time is divided by along each axis."""


def add_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="cnn", help="the model whose batch grows (default: cnn)")
    batches = f"a batch size, in rising order; repeatable (default: {' '.join(map(str, BATCHES))})"
    add("--batch", action=Repeated, type=at_least(2), default=BATCHES, help=batches)
    wider = f"a model, each wider than the last; repeatable (default: {' '.join(WIDTHS)})"
    add("--width", action=Repeated, default=WIDTHS, help=wider)
    add("--width-batch", type=at_least(2), default=16, help="images per step of those models (default: 16)")
    add_shared(parser, method=("adv-1", "atlas-1"), repeats=5, shape=None, device="cpu")
    add_shared(parser, precision=None, set=())


def run(options: Namespace) -> dict[str, Any]:
    axes = {
        "batch": [(options.model, size) for size in options.batch],
        "width": [(name, options.width_batch) for name in options.width],
    }
    report = {"machine": machine(checked_device(options.device)), "repeats": options.repeats}
    report |= {"settings": settings_of(options), "axes": {}}
    for axis, points in axes.items():
        report["axes"][axis] = measure(axis, points, report["settings"], options)
    return report


def measure(
    axis: str, points: Sequence[tuple[str, int]], settings: Settings, options: Namespace
) -> list[dict[str, Any]]:
    """For each method and point: the FLOPs of a step, and all seconds."""
    records, groups = list[dict[str, Any]](), dict[str, list[Contestant]]()
    with busy_process() as set_busy:

        def turn(step: Callable[[], None], busy: bool, repeat: int) -> tuple[float, None]:
            set_busy(busy)
            try:
                return seconds_of(step, options.device)
            finally:
                set_busy(False)

        for case, (name, size) in product(cases(options.method), points):
            shape = shape_of(name, options.shape)
            batch, network = random_batch(size, shape, options.device), models.build(name, shape=shape)
            step = step_of(network.to(options.device), case, batch, settings)
            ways = {"quiet": partial(turn, step, False), "busy": partial(turn, step, True)}
            groups[f"{case.label}, {name}, batch {size}"] = [Contestant(*way) for way in ways.items()]
            flops = count_step(name, case, shape, CLASSES, size).flops
            records.append({"method": case.label, "model": name, "batch": size, "flops": flops})
        interleave(groups, options.repeats, axis)
    for record, group in zip(records, groups.values(), strict=True):
        record["seconds"] = {contestant.name: contestant.seconds for contestant in group}
    return records


def blocks(report: Mapping[str, Any]) -> Blocks:
    page: Blocks = [f"Measured on {facts(report)}."]
    for axis, records in report["axes"].items():
        name, unit = UNITS[axis]
        rows = []
        for r in records:
            quiet, busy = r["seconds"]["quiet"], r["seconds"]["busy"]
            cost = f"{1e3 * np.median(quiet) / unit(r):.3g}"
            about = (r["method"], r["model"], str(r["batch"]))
            rows.append((*about, milliseconds(quiet), cost, ratio(over(busy, quiet))))
        page.append(TextTable(("method", "model", "batch", "ms per step", name, "busy / quiet"), rows))
    return page


def draw(report: Mapping[str, Any]) -> Figure:
    """Seconds against batch and FLOPs; straight lines of slope 1 are growth in proportion."""
    panels = []
    for axis, records in report["axes"].items():
        names = list(dict.fromkeys(r["model"] for r in records))
        across = f"GFLOPs per step, {names[0]} to {names[-1]}, batch {records[0]['batch']}"
        panel = ChartPanel(f"images per step, {names[0]}" if axis == "batch" else across)
        for number, method in enumerate(dict.fromkeys(r["method"] for r in records)):
            mine = [r for r in records if r["method"] == method]
            x = [UNITS[axis][1](r) for r in mine]
            for way, line in {"quiet": "o-", "busy": "o--"}.items():
                y = [float(np.median(r["seconds"][way])) for r in mine]
                panel.add(x, y, line, f"{method}, {way}", number)
            last = float(np.median(mine[-1]["seconds"]["quiet"]))
            panel.add(x, [last * a / x[-1] for a in x], ":", "" if number else "in proportion")
        panels.append(panel)
    return chart(panels, "seconds per step")
