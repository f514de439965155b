"""What training costs on paper: as plain data, as rows of text, and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from atlas import models
from atlas.bench.cases import Case
from atlas.bench.cluster import Job, Link, sent
from atlas.bench.cost import Growing, Sizes, growing
from atlas.bench.report import grid, markers
from atlas.data import num_batches

COST_MARKERS = markers("cost")
COST_METHODS = ("adv-1", "atlas-1", "adv-10")
GIGABIT = 1e9 / 8
LIMIT_HEADINGS = (
    *("method", "Gbit/s", "computing ms", "backward ms", "sending ms", "gain", "hidden to", "half to"),
    "Gbit/s to hide",
)


@dataclass(frozen=True)
class Task:
    """What is trained."""

    title: str
    model: str
    shape: tuple[int, ...]
    classes: int
    images: int
    batch: int


TASKS = (
    Task("CIFAR-10", "wrn-28-8", (3, 32, 32), 10, 50_000, 64),
    Task("ImageNet", "atlas.bench.imagenet:wrn_50_2", (3, 224, 224), 1000, 1_281_167, 512),
)


@dataclass(frozen=True)
class Site:
    """Where it is trained: so many ranks, each computing `speed` FLOPs a second, on links of these kinds."""

    ranks: int
    speed: float
    links: Sequence[Link]


def task_cost(task: Task, cases: Sequence[Case], site: Site) -> dict[str, Any]:
    """All numbers of one task; times are in seconds and sizes in bytes."""
    sizes = Sizes.of(models.build(task.model, task.classes, task.shape, device="meta"))
    methods = [_method_cost(task, case, sizes, site) for case in cases]
    return {**asdict(task), "parameters": sizes.parameters, "messages": sizes.messages, "methods": methods}


def _method_cost(task: Task, case: Case, sizes: Sizes, site: Site) -> dict[str, Any]:
    work = growing(task.model, case, task.shape, task.classes)
    whole = work.of(task.batch)
    job = Job(task.batch, whole.flops, whole.backward_flops, sizes.messages, site.speed)
    return {
        "method": case.label,
        "flops": whole.flops,
        "backward_flops": whole.backward_flops,
        "epoch_flops": whole.flops * task.images // task.batch,
        "memory": {str(n): _memory(work, sizes, job, n) for n in (1, site.ranks)},
        "sent": round(sum(sent(site.ranks, size) for size in sizes.messages)),
        "steps": num_batches(task.images, task.batch),
        "limits": [_limit(job, site.ranks, link) for link in site.links],
        "curve": [_point(job, ranks, site.links) for ranks in _doubled(job.most())],
    }


def _memory(work: Growing, sizes: Sizes, job: Job, ranks: int) -> dict[str, int]:
    return {**sizes.held(ranks), "activations": work.of(job.share(ranks)).saved}


def _limit(job: Job, ranks: int, link: Link) -> dict[str, Any]:
    needed = job.needed(ranks, link.latency)
    return {
        "bandwidth": link.bandwidth,
        "computing": job.computing(ranks),
        "backward": job.backward(ranks),
        "sending": link.seconds(ranks, job.messages),
        "gain": job.computing(1) / job.seconds(ranks, link),
        "hidden_to": job.hidden_to(link),
        "half_to": job.half_to(link),
        "needed": needed if math.isfinite(needed) else None,
    }


def _point(job: Job, ranks: int, links: Sequence[Link]) -> dict[str, Any]:
    sending = [link.seconds(ranks, job.messages) for link in links]
    times = {"computing": job.computing(ranks), "backward": job.backward(ranks), "sending": sending}
    return {"ranks": ranks, **times}


def _doubled(most: int) -> list[int]:
    """2, 4, 8 ... up to the largest."""
    return [2**power for power in range(1, most.bit_length())]


def cost_report(tasks: Sequence[Task], cases: Sequence[Case], site: Site) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        **{"ranks": site.ranks, "speed": site.speed, "links": [asdict(link) for link in site.links]},
        "tasks": [task_cost(task, cases, site) for task in tasks],
    }


def cost_headings(report: Mapping[str, Any]) -> tuple[str, ...]:
    a_method = ("method", "GFLOP/image", "TFLOP/step", "PFLOP/epoch", "minutes/epoch")
    return (*a_method, "GB on 1", "activations", f"GB on {report['ranks']}", "MB/step", "GB/epoch")


def cost_rows(task: Mapping[str, Any], report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Text under `cost_headings`."""
    rows: list[tuple[str, ...]] = []
    for m in task["methods"]:
        alone, shared = (m["memory"][str(n)] for n in (1, report["ranks"]))
        rows.append(
            (
                *(m["method"], _short(m["flops"] / task["batch"] / 1e9), _short(m["flops"] / 1e12)),
                *(_short(m["epoch_flops"] / 1e15), _short(m["epoch_flops"] / report["speed"] / 60)),
                *(_short(sum(alone.values()) / 1e9), f"{alone['activations'] / sum(alone.values()):.0%}"),
                _short(sum(shared.values()) / 1e9),
                *(_short(m["sent"] / 1e6), _short(m["sent"] * m["steps"] / 1e9)),
            )
        )
    return rows


def limit_rows(task: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Text under `LIMIT_HEADINGS`."""
    return [
        (
            *(m["method"], _short(limit["bandwidth"] / GIGABIT)),
            *(_short(1e3 * limit[key]) for key in ("computing", "backward", "sending")),
            _short(limit["gain"]),
            *(str(limit[key]) for key in ("hidden_to", "half_to")),
            _short(limit["needed"] / GIGABIT) if limit["needed"] else "-",
        )
        for m in task["methods"]
        for limit in m["limits"]
    ]


def task_title(task: Mapping[str, Any]) -> str:
    shape = "x".join(map(str, task["shape"]))
    return (
        f"{task['title']}: {task['model']}, {task['parameters']:,} weights, {shape}, "
        f"{task['classes']} classes, {task['images']:,} images, batch {task['batch']}"
    )


def cost_facts(report: Mapping[str, Any]) -> str:
    return (
        f"{report['ranks']} ranks at {_short(report['speed'] / 1e12)} TFLOP/s each, "
        f"{_short(1e6 * report['links'][0]['latency'])} µs from one to the next; "
        f"counted with torch {report['torch']}"
    )


def cost_markdown(report: Mapping[str, Any]) -> str:
    """For each task what it costs, and where the network is the limit."""
    parts = [f"On {cost_facts(report)}."]
    for task in report["tasks"]:
        parts += [f"**{task_title(task)}**", grid(cost_headings(report), cost_rows(task, report))]
        parts.append(grid(LIMIT_HEADINGS, limit_rows(task)))
    return "\n\n".join(parts)


def _short(value: float) -> str:
    """Three digits, and never an exponent."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, digits):,.{max(0, digits)}f}"
