"""The throughput of several processes against that of one, on this machine's CPU.

The same step is made by one process, by one with the threads of all, and by all together. Means of gradients
of many sizes are timed too; `python -m scripts.cluster_cost --measured` compares both with its model.

  python -m benchmarks scale --processes 4 --threads 2 --model wrn-16-2 --batch 256 --json scale.json
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from atlas import models
from atlas.data import Batch
from atlas.distributed.launch import launch, size, started
from atlas.errors import UsageError
from atlas.machine import machine
from atlas.training import ProcessGroup, connected
from benchmarks.command import add_shared, at_least, shape_of
from benchmarks.equations import Case, cases
from benchmarks.processes import background_load
from benchmarks.step import CLASSES, random_batch, trainer
from benchmarks.tables import Blocks, TextTable, facts, milliseconds, model_heading, over, ratio
from benchmarks.timing import Contestant, interleave

MODELS = ("cnn-small", "cnn", "wrn-10-1")
METHODS = ("adv-1", "atlas-1")
LINK_ROUNDS = 3
"""A message is short beside a step, and its time varies more."""
SIZES = tuple(1024 * 4**power for power in range(9))
"""Bytes of gradients that are summed: 1 KB to 64 MB."""
ALONE, THREADS, TOGETHER = "alone", "threads", "together"
"""One process with its threads; one with the threads of all; all processes."""
RATIOS = ((TOGETHER, ALONE), (TOGETHER, THREADS), (THREADS, ALONE))


def gathered(ranks: ProcessGroup, number: float) -> list[float]:
    """The numbers of all ranks; all wait for all."""
    places = [0.0] * ranks.size
    places[ranks.rank] = number
    return list(ranks.mean(places, 1.0))


def contestants(
    make: Callable[[], nn.Module], case: Case, batch: Batch, ranks: ProcessGroup, threads: int
) -> list[Contestant]:
    """The settings of one method; every rank runs all of them, in the same order."""
    alone = trainer(make(), case, batch)
    settings = {
        ALONE: (alone, threads),
        THREADS: (alone, threads * ranks.size),
        TOGETHER: (trainer(make(), case, batch, ranks), threads),
    }

    def turn(name: str, repeat: int) -> tuple[float, None]:
        """A step as `fit` makes it, with the check for signals after it. Ranks without a part in it wait."""
        learner, count = settings[name]
        torch.set_num_threads(count)
        began = time.perf_counter()
        if name == TOGETHER or ranks.first:
            learner.step(batch)
            learner.check_requests()
        return slowest(ranks, began), None

    return [Contestant(name, partial(turn, name)) for name in settings]


def slowest(ranks: ProcessGroup, began: float) -> float:
    """The most seconds of any rank since then; all wait for all."""
    return max(gathered(ranks, time.perf_counter() - began))


def measure_link(ranks: ProcessGroup, repeats: int, sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """The seconds that the mean of gradients of each size takes."""

    def turn(model: nn.Module, repeat: int) -> tuple[float, None]:
        ranks.wait()
        began = time.perf_counter()
        ranks.mean_gradients(model, 1 / ranks.size)
        return slowest(ranks, began), None

    everyone = {count: Contestant(str(count), partial(turn, _with_gradients(count))) for count in sizes}
    interleave({"bytes": list(everyone.values())}, repeats, "messages" if ranks.first else None)
    return [
        {"bytes": count, "median": float(np.median(each.seconds)), "seconds": each.seconds}
        for count, each in everyone.items()
    ]


def _with_gradients(count: int) -> nn.Module:
    """A model whose only weights have gradients of `count` bytes."""
    weights = nn.Parameter(torch.zeros(count // 4))
    weights.grad = torch.ones_like(weights)
    return nn.ParameterList([weights])


def add_options(parser: ArgumentParser) -> None:
    add_shared(parser, model=MODELS, method=METHODS, batch=128, repeats=10, shape=None)
    parser.add_argument("--processes", type=at_least(2), default=2, help="that share each batch (default: 2)")
    parser.add_argument("--threads", type=at_least(1), default=1, help="of each process (default: 1)")


def run(options: Namespace) -> dict[str, Any] | None:
    """The report, on the first of the processes. Starts them unless torchrun or `launch` has."""
    of = size() if started() else options.processes
    if of < 2 or options.batch < 2 * of:
        raise UsageError(
            f"needs >= 2 processes with >= 2 images each, got {of} for batches of {options.batch}"
        )
    chosen, shapes = cases(options.method), {name: shape_of(name, options.shape) for name in options.model}
    if not started():
        for name, shape in shapes.items():
            models.build(
                name, CLASSES, shape, device="meta"
            )  # refuses a wrong name before any process starts
        sys.exit(launch(sys.argv[1:], of, module="benchmarks"))
    report = {"machine": machine(), "batch": options.batch, "repeats": options.repeats}
    report |= {"processes": of, "threads": options.threads, "models": []}
    with connected() as ranks:
        torch.set_num_threads(options.threads)

        def watched() -> Callable[[], float | None]:
            return background_load(lambda seconds: sum(gathered(ranks, seconds)))

        load = watched()
        sizes = measure_link(ranks, LINK_ROUNDS * options.repeats)
        report["link"] = {"sizes": sizes, "elsewhere": load()}
        for name, shape in shapes.items():
            load, batch = watched(), random_batch(options.batch, shape)
            make = partial(models.build, name, CLASSES, shape)
            groups = {c.label: contestants(make, c, batch, ranks, options.threads) for c in chosen}
            interleave(groups, options.repeats, name if ranks.first else None)
            about = {"model": name, "shape": shape, "parameters": models.count_parameters(make())}
            seconds = {label: {c.name: c.seconds for c in group} for label, group in groups.items()}
            methods = [{"method": label, "seconds": found} for label, found in seconds.items()]
            report["models"].append({**about, "elsewhere": load(), "methods": methods})
        return report if ranks.first else None


def blocks(report: Mapping[str, Any]) -> Blocks:
    processes, threads = report["processes"], report["threads"]
    names = {
        ALONE: f"1 x {threads}",
        THREADS: f"1 x {processes * threads}",
        TOGETHER: f"{processes} x {threads}",
    }
    ratios = (f"{names[a]} / {names[b]}" for a, b in RATIOS)
    headings = ("method", *(f"{name} ms" for name in names.values()), *ratios)
    page: Blocks = [f"Measured on {facts(report)}."]
    for model in report["models"]:
        rows = []
        for label, seconds in ((m["method"], m["seconds"]) for m in model["methods"]):
            times = (milliseconds(seconds[name]) for name in names)
            rows.append((label, *times, *(ratio(over(seconds[b], seconds[a])) for a, b in RATIOS)))
        page += [model_heading(model) + load_note(model), TextTable(headings, rows)]
    page.append(f"**The mean of gradients** of {processes} processes{load_note(report['link'])}")
    sizes = [(_size(each["bytes"]), f"{1e3 * each['median']:.2f}") for each in report["link"]["sizes"]]
    return [*page, TextTable(("gradients", "ms"), sizes)]


def load_note(part: Mapping[str, Any]) -> str:
    return "" if part["elsewhere"] is None else f"; background load {part['elsewhere']:.0%}"


def _size(count: int) -> str:
    return f"{count // 2**20} MB" if count >= 2**20 else f"{count // 2**10} KB"
