"""A whole training step against the bare passes that its equation needs: time and memory.

Each repeat times both, one right after the other, for every method. The last columns are the FLOPs bound in
forward passes, and that bound over the one of adv-1. A second table has the activations that a step must keep
for its gradients, and the most memory that it takes.

  python -m benchmarks step --model cnn-small --method adv-1 --method atlas-1 --repeats 100
  python -m benchmarks step --model my.module:network --shape 3x64x64 --device cuda --precision auto
"""

from __future__ import annotations

import copy
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from atlas import models
from atlas.config import build, overridden, table_of
from atlas.data import Batch, Images
from atlas.distributed.launch import checked_device
from atlas.errors import UsageError
from atlas.machine import machine
from atlas.rng import Rng
from atlas.threat import Linf
from atlas.training import Optimizer, ProcessGroup, Schedule, Training
from atlas.training.settings import REGISTRIES
from atlas.training.trainer import Trainer
from benchmarks.command import add_shared, settings_of, shape_of
from benchmarks.equations import (
    MEASURED,
    REFERENCE,
    Case,
    LossPoints,
    SavedActivations,
    bare_step,
    cases,
)
from benchmarks.processes import silence
from benchmarks.tables import Blocks, TextTable, facts, milliseconds, model_heading, over, ratio
from benchmarks.timing import Contestant, interleave, timed

Settings = Mapping[str, Any]
"""Of training, by their dotted keys, as `atlas train --set` takes them: {"training.precision": "craft"}."""
MODELS = ("cnn", "wrn-16-2")
CLASSES = 10
THREAT = Linf(8 / 255)
OPTIMIZER = Optimizer(lr=1e-5, momentum=0.9)
"""The learning rate is so small that the weights hardly move: no time depends on it."""
HEADINGS = ("method", "step ms", "bare ms", "step / bare", f"step / {REFERENCE}", "passes", "bound")
MEMORY_HEADINGS = ("method", "saved MB", "peak MB", "peak / saved", f"peak / {REFERENCE}")
PROFILED = "atlas: step"
"""The name of the measured step in a trace."""


def random_batch(size: int, shape: Sequence[int], device: torch.device | str = "cpu") -> Batch:
    """Images of noise with random labels."""
    ids = torch.arange(size, device=device)
    rng = Rng.lanes(0, ids)
    return Batch(ids, rng.fold("x").uniform(shape), rng.fold("y").bits(()).remainder(CLASSES))


def training_with(batch_size: int, settings: Settings) -> Training:
    """Training at the full eps from the first step, with these settings."""
    plain = Training(batch_size, optimizer=OPTIMIZER, schedule=Schedule(ramp_epochs=0))
    table = overridden({"training": table_of(plain, REGISTRIES)}, settings.items(), REGISTRIES)
    if set(table) != {"training"}:
        raise UsageError(f"--set must be a setting of training (training.KEY), got {', '.join(settings)}")
    return build(Training, table["training"], REGISTRIES, "training")


def trainer(
    model: nn.Module,
    case: Case,
    batch: Batch,
    ranks: ProcessGroup = ProcessGroup(),
    settings: Settings | None = None,
) -> Trainer:
    """The trainer that `fit` runs, on this batch alone, without files or display."""
    training = training_with(len(batch.y), settings or {})
    images = Images(batch.x.cpu(), batch.y.cpu(), CLASSES)
    return Trainer(model, images, images, case.method, THREAT, training, group=ranks)


def step_of(model: nn.Module, case: Case, batch: Batch, settings: Settings) -> Callable[[], None]:
    """`fit`'s own step. With settings it has a copy of the model, whose memory layout may be one of them."""
    network = copy.deepcopy(model) if settings else model
    return partial(trainer(network, case, batch, settings=settings).step, batch)


def bare_of(model: nn.Module, case: Case, batch: Batch) -> Callable[[], None] | None:
    """The bare passes; None for a method without an equation."""
    if case.equation is None:
        return None
    rng, weights = Rng.lanes(0, batch.ids), [p for p in model.parameters() if p.requires_grad]
    points = LossPoints(model, batch.x, THREAT.random_start(batch.x, rng), batch.y, rng.sphere(CLASSES))
    optimizer = torch.optim.SGD(weights, OPTIMIZER.lr, OPTIMIZER.momentum)
    return partial(bare_step, case.equation, case.steps, points, optimizer)


def memory_of(model: nn.Module, case: Case, batch: Batch, settings: Settings) -> dict[str, int]:
    """Bytes of a step beyond weights, their gradients, momenta and the batch, which exist before it.

    `saved`: activations that its graphs hold at one time, at most. `peak`: what is allocated at one time.
    """
    network = copy.deepcopy(model)
    step = partial(trainer(network, case, batch, settings=settings).step, batch)
    step()  # creates gradients and momenta
    saved = SavedActivations(network, *batch)
    with saved:
        step()
    return {"saved": saved.peak, "peak": allocated_peak(step, batch.x.device)}


def allocated_peak(step: Callable[[], None], device: torch.device | str = "cpu") -> int:
    """The most bytes that a step holds beyond what was held before it."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    recorded: Any = profiled(step, memory=True).profiler
    events = [event for event in recorded.kineto_results.events() if event.device_type().name == "CPU"]
    began = next(event.start_ns() for event in events if event.name() == PROFILED)
    taken = [event for event in events if event.name() == "[memory]" and event.start_ns() >= began]
    held = np.cumsum([event.nbytes() for event in sorted(taken, key=lambda e: int(e.start_ns()))])
    return int(max(held, default=0))


def profiled(step: Callable[[], None], *, memory: bool = False) -> profile:
    """One run under torch's profiler.

    For memory it follows another run that the profiler sees too: it does not notice when memory is freed that
    was allocated before it started, such as the last step's gradients.
    """
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    profiler = profile(activities=kinds, profile_memory=memory)
    with silence(), profiler:
        if memory:
            step()
        with record_function(PROFILED):
            step()
    return profiler


def trace(step: Callable[[], None], path: Path) -> None:
    """Write a Chrome trace of a step, for ui.perfetto.dev."""
    step()  # fills caches
    path.parent.mkdir(parents=True, exist_ok=True)
    recorded = profiled(step)
    with silence():
        recorded.export_chrome_trace(str(path))


def add_options(parser: ArgumentParser) -> None:
    add_shared(parser, model=MODELS, method=MEASURED, batch=128, repeats=20)
    add_shared(parser, shape=None, device="cpu", precision=None, set=())
    about = "write a trace of a step of each method there, for ui.perfetto.dev"
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help=about)


def run(options: Namespace) -> dict[str, Any]:
    chosen, settings = cases((*options.method, REFERENCE)), settings_of(options)
    training_with(2, settings)  # refuses a wrong setting before anything is measured
    report = {"machine": machine(checked_device(options.device)), "batch": options.batch}
    report |= {"repeats": options.repeats, "settings": settings, "models": []}
    for name in options.model:
        shape = shape_of(name, options.shape)
        batch = random_batch(options.batch, shape, options.device)
        network = models.build(name, shape=shape).to(options.device)
        groups = {each.label: contestants(network, each, batch, settings) for each in chosen}
        interleave(groups, options.repeats, name)
        methods = [
            {
                **{"method": each.label, "passes": each.cost},
                "memory": memory_of(network, each, batch, settings),
                "seconds": {contestant.name: contestant.seconds for contestant in groups[each.label]},
            }
            for each in chosen
        ]
        about = {"model": name, "shape": shape, "parameters": models.count_parameters(network)}
        report["models"].append({**about, "methods": methods})
        for each in chosen if options.profile else ():
            path = options.profile / f"{name.replace(':', '-')}-{each.label}.json"
            trace(step_of(network, each, batch, settings), path)
    return report


def contestants(model: nn.Module, case: Case, batch: Batch, settings: Settings) -> list[Contestant]:
    works = {"step": step_of(model, case, batch, settings), "bare": bare_of(model, case, batch)}
    return [timed(name, work, batch.x.device) for name, work in works.items() if work]


def blocks(report: Mapping[str, Any]) -> Blocks:
    page: Blocks = [f"Measured on {facts(report)}."]
    for model in report["models"]:
        rows, memory_rows, by_label = [], [], {m["method"]: m for m in model["methods"]}
        reference = by_label[REFERENCE]
        for label, m in by_label.items():
            step, bare = m["seconds"]["step"], m["seconds"].get("bare", [])
            ratios = (ratio(over(step, bare)), ratio(over(step, reference["seconds"]["step"])))
            bound = f"{m['passes'] / reference['passes']:.2f}" if m["passes"] else "-"
            times = (milliseconds(step), milliseconds(bare))
            rows.append((label, *times, *ratios, str(m["passes"] or "-"), bound))
            saved, peak = m["memory"]["saved"], m["memory"]["peak"]
            ratios = (f"{peak / saved:.2f}", f"{peak / reference['memory']['peak']:.2f}")
            memory_rows.append((label, f"{saved / 1e6:.1f}", f"{peak / 1e6:.1f}", *ratios))
        page += [model_heading(model), TextTable(HEADINGS, rows), TextTable(MEMORY_HEADINGS, memory_rows)]
    return page
