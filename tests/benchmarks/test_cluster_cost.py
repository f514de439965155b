"""The cluster model against real steps, published figures and arithmetic by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from atlas import models
from atlas.distributed.process_group import ProcessGroup
from benchmarks.equations import case, count_step, counts_of
from benchmarks.step import random_batch, trainer
from benchmarks.tables import markdown, markers_of
from scripts.cluster_cost import (
    DOUBLE,
    LOGGED,
    TASKS,
    ClusterStep,
    Link,
    blocks,
    checked,
    fitted,
    resnet_50,
    sent,
    sizes_of,
    task_cost,
)

ROOT = Path(__file__).parents[2]
WIDE = "scripts.cluster_cost:wrn_50_2"
SHAPES = {"cnn-small": (1, 8, 8), "cnn": (1, 8, 8), "wrn-10-1": (3, 8, 8)}
STEP = ClusterStep(batch=64, flops=64e9, messages=(1_000_000, 8), speed=1e9)
"""Computes 64 s alone; gradients take 2 (N - 1) / N s at 1 MB/s."""


def test_flops_of_the_networks_are_the_published_ones() -> None:
    """Multiplications with their additions per image: WRN-28-8 3.36, ResNet-50 4.09, WRN-50-2 11.4 billion.

    A natural step is 3 forward passes, less the gradient of the images.
    """
    published = {("wrn-28-8", 32, 10): (23_354_842, 3.36), (WIDE, 224, 1000): (68_883_240, 11.4)}
    for (name, side, classes), (weights, billions) in published.items():
        assert sizes_of(name, (3, side, side), classes).parameters == weights
        found = count_step(name, case("natural"), (3, side, side), classes, 2)
        assert found.flops / 3 / 2 / 2e9 == pytest.approx(billions, rel=0.02)
    with torch.device("meta"):
        plain = resnet_50(1000, (3, 224, 224))
        found = counts_of(plain, case("natural"), torch.empty(2, 3, 224, 224), 1000)
    assert models.count_parameters(plain) == 25_557_032
    assert found.flops / 3 / 2 / 2e9 == pytest.approx(4.09, rel=0.02)


def test_what_is_held_is_what_a_trainer_has() -> None:
    """Weights with statistics, gradients, momentum and the best weights, in bytes, after a real step."""
    batch, model = random_batch(4, (3, 8, 8)), models.build("wrn-10-1", shape=(3, 8, 8))
    learner = trainer(model, case("natural"), batch).state
    learner.backward(model(batch.x).sum())
    learner.update(0.1)
    learner.keep_best()
    real = {key: value for key, value in learner.tensors().items() if value.is_floating_point()}

    def held(prefix: str) -> int:
        return sum(value.nbytes for key, value in real.items() if key.startswith(prefix))

    assert sizes_of("wrn-10-1", (3, 8, 8), 10).held(1) == {
        "weights": held("model."),
        "gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "momentum": held("optimizer."),
        "best": held("best."),
        "message": 0,
    }


def test_messages_are_those_that_a_step_really_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noted(tensor: Tensor, *rest: object) -> None:
        sizes.append(tensor.nbytes)

    monkeypatch.setattr(dist, "all_reduce", noted)
    for name, shape in SHAPES.items():
        for label in ("natural", "atlas-1", "trades_jac-1"):
            batch, model = random_batch(8, shape), models.build(name, shape=shape)
            learner = trainer(model, case(label), batch, ProcessGroup(0, 2))
            learner.step(batch)
            sizes.clear()
            learner.step(batch)
            learner.check_requests()
            *large, log, leave = sizes_of(name, shape, 10).messages
            assert [*sizes[:-2], sizes[-1]] == [*large, leave]
            assert sizes[-2] <= log == DOUBLE * LOGGED


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_sends_as_counted(ranks: int) -> None:
    """Played: each rank passes on a part at a time until all have the sums of all."""
    parts = [[float(rank == part) + rank for part in range(ranks)] for rank in range(ranks)]
    sums = [sum(column) for column in zip(*parts, strict=True)]
    hops = 2 * (ranks - 1)
    for turn in range(hops):
        moved = [(rank, (rank - turn) % ranks) for rank in range(ranks)]
        values = [parts[rank][part] for rank, part in moved]
        for (rank, part), value in zip(moved, values, strict=True):
            to = parts[(rank + 1) % ranks]
            to[part] = value + (to[part] if turn < ranks - 1 else 0)
    assert parts == [sums] * ranks
    assert sent(ranks, ranks * 40) == hops * 40
    assert Link(1e3, 0.5).seconds(ranks, [ranks * 40]) == pytest.approx(hops * (0.5 + 0.04))


def test_a_link_is_recovered_from_its_times() -> None:
    link = Link(3e8, 4e-5)
    for ranks in (2, 5):
        sizes, noise = [1024 * 4**k for k in range(9)], [1.02, 0.98, 1.0] * 3
        times = [link.seconds(ranks, [n]) * factor for n, factor in zip(sizes, noise, strict=True)]
        found = fitted(ranks, sizes, times)
        assert found.bandwidth == pytest.approx(link.bandwidth, rel=0.03)
        assert found.latency == pytest.approx(link.latency, rel=0.03)


def test_a_step_takes_what_it_computes_and_sends() -> None:
    assert STEP.computing(1) == 64
    assert STEP.computing(3) == 22, "the largest share has 22 images"
    assert STEP.seconds(1, Link(1e6, 9.0)) == 64
    assert STEP.seconds(4, Link(1e6, 0.5)) == pytest.approx(16 + 1.5 + 1.5 * 8e-6 + 2 * 6 * 0.5)


@pytest.mark.parametrize("bandwidth", [1e4, 1e5, 1e6, 2e6, 1e12])
def test_half_of_the_time_is_computing_up_to_where_the_lines_cross(bandwidth: float) -> None:
    """By a search from the other side."""

    def computes_longer(n: int) -> bool:
        return 2 * (n - 1) / n * 1_000_008 / bandwidth <= -(-64 // n)

    most = max(n for n in range(1, 33) if all(computes_longer(k) for k in range(2, n + 1)))
    assert STEP.half_to(Link(bandwidth, 0.0)) == most


def test_predictions_follow_from_the_time_of_one_process_and_the_link() -> None:
    """Sums of two ranks: a second of latency for there and back, and a second per 1000 bytes."""
    sizes = [{"bytes": n, "median": 1 + n / 1000} for n in (1000, 3000)]
    method = {"method": "natural", "seconds": {"alone": [8.0, 80.0, 8.0], "together": [5.0, 50.0, 5.0]}}
    model = {"model": "cnn-small", "shape": [1, 8, 8], "methods": [method]}
    check = checked({"processes": 2, "batch": 8, "link": {"sizes": sizes}, "models": [model]})
    assert check["link"] == pytest.approx({"bandwidth": 1000, "latency": 0.5})
    (step,) = check["steps"]
    messages = sizes_of("cnn-small", (1, 8, 8), 10).messages
    assert (step["one"], step["together"]) == (8.0, 5.0)
    assert step["predicted"] == pytest.approx(8 / 2 + len(messages) + sum(messages) / 1000)


def test_the_script_counts_prints_draws_and_writes(tmp_path: Path) -> None:
    page, data, picture = tmp_path / "page.md", tmp_path / "cost.json", tmp_path / "cost.svg"
    begin, end = markers_of("cluster cost")
    page.write_text(f"{begin}\n{end}\n")
    words = [
        "--model",
        "cnn-small",
        "--shape",
        "1x8x8",
        "--method",
        "atlas-1",
        "--batch",
        "16",
        "--ranks",
        "4",
    ]
    more = ["--images", "100", "--speed", "1e-6", "--bandwidth", "0.08", "--latency", "0"]
    files = ["--json", str(data), "--markdown", str(page), "--figure", str(picture)]
    command = [sys.executable, "-m", "scripts.cluster_cost", *words, *more, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(data.read_text())
    (method,) = report["tasks"][0]["methods"]
    whole = count_step("cnn-small", case("atlas-1"), (1, 8, 8), 10, 16)
    assert (method["flops"], method["memory"]["1"]["activations"]) == (whole.flops, whole.saved)
    computing = whole.flops / 4 / 1e6
    sending = 1.5 * sum(report["tasks"][0]["messages"]) / 1e7
    gain = 4 * computing / (computing + sending)
    assert f" | {gain:.3g} | " in page.read_text()
    assert page.read_text() == f"{begin}\n{markdown(blocks(report))}\n{end}\n"
    assert "sending at 0.08 Gbit/s" in picture.read_text()
    assert max(map(len, done.stdout.splitlines())) <= 80
    refused = subprocess.run(
        [*command, "--ranks", "9"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (refused.returncode, "--ranks must be <= 8 for batches of 16" in refused.stderr) == (2, True)


@pytest.mark.parametrize("label", ["adv-1", "atlas-1"])
def test_the_stored_counts_are_counted_again(label: str) -> None:
    """For CIFAR-10; the ImageNet network is compared with published figures above."""
    stored = json.loads((ROOT / "results/bench-cost.json").read_text())
    again = json.loads(json.dumps(task_cost(TASKS[0], [case(label)], stored["ranks"])))
    (method,) = again.pop("methods")
    assert method in stored["tasks"][0].pop("methods")
    assert again == stored["tasks"][0]
