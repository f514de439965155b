"""What training costs on a cluster, by arithmetic: FLOPs, memory, bytes sent, and where the network limits.

Passes are counted without computing them, for any model at any size. Speed, bandwidth and latency are what
you assume of your machines; `python -m benchmarks step` and `scale` measure them. Ranks share a batch: each
computes its share and then sums messages with the others over a ring, one after the other, as `atlas.fit`:

  t(N) = FLOPs(share) / speed + sum over messages of [2 (N - 1) latency + 2 (N - 1) / N bytes / bandwidth].

Left out: small shares run at a lower speed, ranks wait for the slowest and share memory or links, batches,
validation and checkpoints.

  python -m scripts.cluster_cost
  python -m scripts.cluster_cost --model preact-resnet18 --shape 3x64x64 --classes 200 --images 100000
  python -m scripts.cluster_cost --model my.module:network --speed 20 --bandwidth 25 --figure cost.svg
"""

from __future__ import annotations

import json
import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from atlas import models
from atlas.data import num_batches
from atlas.distributed.process_group import FEWEST
from atlas.errors import UsageError
from benchmarks.command import Repeated, add_shared, at_least, shape_of
from benchmarks.equations import Case, case, cases, count_step
from benchmarks.step import CLASSES
from benchmarks.tables import Blocks, ChartPanel, TextTable, chart, milliseconds

GIGABIT = 1e9 / 8
FLOAT, DOUBLE = 4, 8
"""Bytes of a number: of weights, gradients and activations; of statistics and the log on their way."""
LOGGED = 8
"""Numbers that a step logs, at most: the loss, its terms, the gradient's norm, the accuracy."""
COST_HEADINGS = (
    *("method", "GFLOP/image", "TFLOP/step", "PFLOP/epoch", "minutes/epoch", "GB on 1", "activations"),
    *("GB shared", "MB/step", "GB/epoch"),
)
LIMIT_HEADINGS = ("method", "Gbit/s", "computing ms", "sending ms", "gain", "half to")
CHECK_HEADINGS = ("model, method", "GFLOP", "GFLOP/s", "one process ms", "all ms", "predicted ms", "error")


@dataclass(frozen=True)
class Link:
    """What joins two neighbours of the ring."""

    bandwidth: float
    """Bytes per second, each way."""
    latency: float
    """Seconds per message and hop, beside its bytes."""

    def seconds(self, ranks: int, messages: Sequence[int]) -> float:
        """Of the sums of messages of these bytes over all ranks, one after the other."""
        hops = 2 * (ranks - 1)
        return sum(hops * self.latency + sent(ranks, size) / self.bandwidth for size in messages)


def sent(ranks: int, size: int) -> float:
    """Bytes that each rank of a ring sends, and receives, for one sum of a message of `size` bytes."""
    return 2 * (ranks - 1) / ranks * size


def fitted(ranks: int, sizes: Sequence[int], seconds: Sequence[float]) -> Link:
    """The link closest to measured times of sums, by least squares of relative errors."""
    times, hops = np.array(seconds), 2.0 * (ranks - 1)
    columns = np.stack([np.full(len(times), hops), [sent(ranks, size) for size in sizes]], 1)
    (latency, per_byte), *_ = np.linalg.lstsq(columns / times[:, None], np.ones(len(times)), rcond=None)
    return Link(1 / float(per_byte), max(0.0, float(latency)))


@dataclass(frozen=True)
class ClusterStep:
    """A step of the whole batch, on devices that compute `speed` FLOPs per second."""

    batch: int
    flops: float
    messages: Sequence[int]
    """Bytes of each sum over all ranks."""
    speed: float

    @property
    def most(self) -> int:
        """The most ranks that have a share."""
        return max(1, self.batch // FEWEST)

    def computing(self, ranks: int) -> float:
        """Seconds that the rank with the largest share computes."""
        return self.flops / self.batch * math.ceil(self.batch / ranks) / self.speed

    def seconds(self, ranks: int, link: Link) -> float:
        return self.computing(ranks) + link.seconds(ranks, self.messages)

    def half_to(self, link: Link) -> int:
        """The most ranks that compute at least as long as they send."""
        slower = (n for n in range(2, self.most + 1) if link.seconds(n, self.messages) > self.computing(n))
        return next(slower, self.most + 1) - 1


@dataclass(frozen=True)
class ModelSizes:
    """What of a model is held and sent, whatever the batch."""

    parameters: int
    tensors: int
    """Parameter tensors; a message has a flag for each, whether it has a gradient."""
    statistics: int
    """Numbers in buffers: running means and variances."""

    @property
    def messages(self) -> tuple[int, ...]:
        """Bytes of each sum of a step over all ranks: gradients, statistics, log, whether to stop."""
        statistics = (DOUBLE * self.statistics,) if self.statistics else ()
        return FLOAT * (self.parameters + self.tensors), *statistics, DOUBLE * LOGGED, DOUBLE

    def held(self, ranks: int) -> dict[str, int]:
        """Bytes of a rank beside activations, by purpose; SGD with momentum, no average of weights."""
        weights, parameters = FLOAT * (self.parameters + self.statistics), FLOAT * self.parameters
        held = {"weights": weights, "gradients": parameters, "momentum": parameters, "best": weights}
        return {**held, "message": self.messages[0] if ranks > 1 else 0}


def sizes_of(name: str, shape: Sequence[int], classes: int) -> ModelSizes:
    """Of the model of this name."""
    model = models.build(name, classes, shape, device="meta")
    trained = [p for p in model.parameters() if p.requires_grad]
    floats = [b for b in model.buffers() if b.is_floating_point()]
    return ModelSizes(sum(p.numel() for p in trained), len(trained), sum(b.numel() for b in floats))


class Bottleneck(nn.Module):
    """ReLU of x + 1x1, 3x3 and 1x1 convolutions with BatchNorm; the stride is in the second."""

    def __init__(self, channels_in: int, inner: int, channels_out: int, stride: int) -> None:
        super().__init__()
        first, second = _conv(channels_in, inner, 1), _conv(inner, inner, 3, stride)
        self.body = nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *_conv(inner, channels_out, 1))
        same = channels_in == channels_out and stride == 1
        self.shortcut = nn.Sequential(*([] if same else _conv(channels_in, channels_out, 1, stride)))
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.body(x) + self.shortcut(x))
        return out


def _conv(channels_in: int, channels_out: int, size: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(channels_in, channels_out, size, stride, padding=size // 2, bias=False)
    return [conv, nn.BatchNorm2d(channels_out)]


def resnet_50(num_classes: int, shape: Sequence[int], width: int = 1) -> nn.Sequential:
    """ResNet-50 (He et al. 2016): 25,557,032 weights for 1000 classes; `width` widens its 3x3 layers."""
    layers: list[nn.Module] = [*_conv(shape[0], 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for group, depth in enumerate((3, 4, 6, 3)):
        for i in range(depth):
            inner, stride = 64 * 2**group, 2 if group > 0 and i == 0 else 1
            layers.append(Bottleneck(before, inner * width, 4 * inner, stride))
            before = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_classes))


def wrn_50_2(num_classes: int, shape: Sequence[int]) -> nn.Sequential:
    """Wide ResNet-50-2 (Zagoruyko and Komodakis 2016): 68,883,240 weights for 1000 classes."""
    return resnet_50(num_classes, shape, width=2)


@dataclass(frozen=True)
class TrainingTask:
    """What is trained."""

    title: str
    model: str
    shape: tuple[int, ...]
    classes: int
    images: int
    batch: int


TASKS = (
    TrainingTask("CIFAR-10", "wrn-28-8", (3, 32, 32), 10, 50_000, 64),
    TrainingTask("ImageNet", "scripts.cluster_cost:wrn_50_2", (3, 224, 224), 1000, 1_281_167, 512),
)


def add_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", help="a model's name (default: WRN-28-8 on CIFAR-10 and WRN-50-2 on ImageNet)")
    add("--classes", type=at_least(2), default=10, help="of that model (default: 10)")
    add("--images", type=at_least(2), default=50_000, help="of its epoch (default: 50000)")
    add_shared(parser, shape=None, batch=128, method=("adv-1", "atlas-1", "adv-10"))
    add("--ranks", type=at_least(2), default=8, help="that share each batch (default: 8)")
    add("--speed", type=at_least(1e-6, float), default=50.0, help="TFLOP/s of each rank (default: 50)")
    links = "Gbit/s between ranks; repeatable (default: 10 100 400)"
    add("--bandwidth", action=Repeated, type=at_least(1e-6, float), default=(10.0, 100.0, 400.0), help=links)
    add("--latency", type=at_least(0, float), default=20.0, help="microseconds per hop (default: 20)")
    check = "compare the model with the times of `python -m benchmarks scale --json FILE`"
    add("--measured", type=Path, metavar="FILE", help=check)


def run(options: Namespace) -> dict[str, Any]:
    tasks: Sequence[TrainingTask] = TASKS
    if options.model:
        rest = (shape_of(options.model, options.shape), options.classes, options.images, options.batch)
        tasks = [TrainingTask("yours", options.model, *rest)]
    if small := [task.batch for task in tasks if task.batch < FEWEST * options.ranks]:
        most = small[0] // FEWEST
        raise UsageError(f"--ranks must be <= {most} for batches of {small[0]}, got {options.ranks}")
    report = {"torch": torch.__version__, "ranks": options.ranks, "speed": options.speed * 1e12}
    report |= {"links": [asdict(Link(each * GIGABIT, options.latency * 1e-6)) for each in options.bandwidth]}
    report |= {"tasks": [task_cost(task, cases(options.method), options.ranks) for task in tasks]}
    return report | ({"check": checked(json.loads(options.measured.read_text()))} if options.measured else {})


def task_cost(task: TrainingTask, chosen: Sequence[Case], ranks: int) -> dict[str, Any]:
    """What is counted: FLOPs of a step, and bytes of memory and messages."""
    sizes, methods = sizes_of(task.model, task.shape, task.classes), []
    for found in chosen:
        counts, memory = {}, {}
        for n in (1, ranks):
            share = math.ceil(task.batch / n)
            counts[n] = count_step(task.model, found, task.shape, task.classes, share)
            memory[str(n)] = {**sizes.held(n), "activations": counts[n].saved}
        methods.append({"method": found.label, "flops": counts[1].flops, "memory": memory})
    return {**asdict(task), "parameters": sizes.parameters, "messages": sizes.messages, "methods": methods}


def checked(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Measured steps of several processes, beside those predicted from the time of one and a fitted link."""
    ranks, sent_sizes, steps = measured["processes"], measured["link"]["sizes"], []
    link = fitted(ranks, [each["bytes"] for each in sent_sizes], [each["median"] for each in sent_sizes])
    for model in measured["models"]:
        sizes = sizes_of(model["model"], model["shape"], CLASSES)
        for m in model["methods"]:
            one, together = (float(np.median(m["seconds"][key])) for key in ("alone", "together"))
            counts = count_step(model["model"], case(m["method"]), model["shape"], CLASSES, measured["batch"])
            step = ClusterStep(measured["batch"], counts.flops, sizes.messages, counts.flops / one)
            about = {"name": f"{model['model']}, {m['method']}", "flops": counts.flops}
            times = {"one": one, "together": together, "predicted": step.seconds(ranks, link)}
            steps.append({**about, **times})
    return {"processes": ranks, "link": asdict(link), "steps": steps}


def blocks(report: Mapping[str, Any]) -> Blocks:
    """For each task what it costs, and where the network is the limit; then the model beside measurements."""
    ranks, links = report["ranks"], [Link(**link) for link in report["links"]]
    speed, latency = f"{short(report['speed'] / 1e12)} TFLOP/s", f"{short(1e6 * links[0].latency)} µs"
    page: Blocks = [
        f"On {ranks} ranks at {speed} each, {latency} per hop; counted with torch {report['torch']}."
    ]
    for task in report["tasks"]:
        shape, epoch = "x".join(map(str, task["shape"])), num_batches(task["images"], task["batch"])
        bytes_sent, costs, limits = sum(sent(ranks, size) for size in task["messages"]), [], []
        for m in task["methods"]:
            alone, shared = (m["memory"][str(n)] for n in (1, ranks))
            flops = m["flops"] * task["images"] / task["batch"]
            costs.append(
                (
                    *(m["method"], short(m["flops"] / task["batch"] / 1e9), short(m["flops"] / 1e12)),
                    *(short(flops / 1e15), short(flops / report["speed"] / 60)),
                    *(short(sum(alone.values()) / 1e9), f"{alone['activations'] / sum(alone.values()):.0%}"),
                    *(short(sum(shared.values()) / 1e9), short(bytes_sent / 1e6)),
                    short(bytes_sent * epoch / 1e9),
                )
            )
            step = ClusterStep(task["batch"], m["flops"], task["messages"], report["speed"])
            for link in links:
                times = (1e3 * step.computing(ranks), 1e3 * link.seconds(ranks, step.messages))
                gain = step.computing(1) / step.seconds(ranks, link)
                numbers = map(short, (link.bandwidth / GIGABIT, *times, gain))
                limits.append((m["method"], *numbers, str(step.half_to(link))))
        page.append(
            f"**{task['title']}**: {task['model']}, {task['parameters']:,} weights, {shape}, "
            f"{task['classes']} classes, {task['images']:,} images, batch {task['batch']}"
        )
        page += [TextTable(COST_HEADINGS, costs), TextTable(LIMIT_HEADINGS, limits)]
    return page + (check_blocks(report["check"]) if "check" in report else [])


def check_blocks(check: Mapping[str, Any]) -> Blocks:
    link, errors, rows = Link(**check["link"]), [], []
    for s in check["steps"]:
        errors.append(s["predicted"] / s["together"] - 1)
        times = (milliseconds(s[key]) for key in ("one", "together", "predicted"))
        speed = f"{s['flops'] / s['one'] / 1e9:.1f}"
        rows.append((s["name"], f"{s['flops'] / 1e9:.3g}", speed, *times, f"{errors[-1]:+.0%}"))
    speed = f"{link.bandwidth / 1e9:.2f} GB/s and {1e6 * link.latency:.0f} µs"
    about = f"{check['processes']} processes, a link of {speed}"
    off = f"off by {min(errors):+.0%} to {max(errors):+.0%}"
    return [f"**Beside measured steps**: {about}; {off}", TextTable(CHECK_HEADINGS, rows)]


def short(value: float) -> str:
    """Three digits, and never an exponent."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, digits):,.{max(0, digits)}f}"


def draw(report: Mapping[str, Any]) -> Figure:
    """Computing and sending against the number of ranks: where they cross, the network is the limit."""
    panels = []
    for task in report["tasks"]:
        title = f"{task['title']}, {task['parameters'] / 1e6:.0f} million weights"
        panel = ChartPanel(f"ranks that share {task['batch']} images", title)
        for number, m in enumerate(task["methods"]):
            step = ClusterStep(task["batch"], m["flops"], task["messages"], report["speed"])
            ranks = [2**power for power in range(1, step.most.bit_length())]
            panel.add(ranks, [1e3 * step.computing(n) for n in ranks], "o-", m["method"], number)
        for style, about in zip(("-", "--", ":", "-."), report["links"], strict=False):
            link = Link(**about)
            name = f"sending at {link.bandwidth / GIGABIT:g} Gbit/s"
            panel.add(ranks, [1e3 * link.seconds(n, step.messages) for n in ranks], style, name)
        panels.append(panel)
    return chart(panels, "ms per step", height=3.0)


if __name__ == "__main__":
    from benchmarks.command import add_command, described, execute

    parser = ArgumentParser(prog="python -m scripts.cluster_cost", **described(__doc__ or ""))
    add_command(parser, sys.modules[__name__])
    execute("cluster cost", sys.modules[__name__], parser.parse_args())
