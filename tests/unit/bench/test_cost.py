"""What is counted without computing, against real steps, published figures and arithmetic by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from atlas import bench, models
from atlas.bench.cluster import Job, Link, fitted, sent
from atlas.bench.cost import DOUBLE, LOGGED, Sizes, growing, work
from atlas.bench.cost_figure import draw_cost
from atlas.bench.cost_report import COST_MARKERS, TASKS, Site, cost_markdown, task_cost
from atlas.bench.imagenet import resnet_50
from atlas.bench.step import trainer
from atlas.cli.bench import app
from atlas.errors import UsageError
from atlas.rng import Rng
from atlas.training.team import Team

ROOT = Path(__file__).parents[3]
WIDE = "atlas.bench.imagenet:wrn_50_2"
SHAPES = {"cnn-small": (1, 8, 8), "cnn": (1, 8, 8), "wrn-10-1": (3, 8, 8)}


# --- FLOPs ---


def test_flops_of_the_networks_are_the_published_ones() -> None:
    """Multiplications with their additions an image: WRN-28-8 3.36, ResNet-50 4.09, WRN-50-2 11.4 billion."""
    natural = bench.case("natural")
    published = {("wrn-28-8", 32, 10): (23_354_842, 3.36), (WIDE, 224, 1000): (68_883_240, 11.4)}
    for (name, side, classes), (weights, billions) in published.items():
        model = models.build(name, classes, (3, side, side), device="meta")
        assert models.count_parameters(model) == weights
        done = growing(name, natural, (3, side, side), classes)
        forward = done.of(2).flops - done.of(2).backward_flops
        assert forward / 2 / 2e9 == pytest.approx(billions, rel=0.01)
    with torch.device("meta"):
        plain = resnet_50(1000, (3, 224, 224))
        found = work(plain, natural, torch.empty(2, 3, 224, 224), 1000)
    assert models.count_parameters(plain) == 25_557_032
    assert (found.flops - found.backward_flops) / 2 / 2e9 == pytest.approx(4.09, rel=0.01)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("label", ["natural", "adv-2", "trades-1", "atlas-1"])
def test_flops_are_those_of_a_real_step(name: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the step that `fit` makes, by torch's own counter."""
    # The counter's look at modules cannot stand gradients of the input, and is not needed.
    monkeypatch.setattr("torch.utils.module_tracker.ModuleTracker.__enter__", lambda self: self)
    monkeypatch.setattr("torch.utils.module_tracker.ModuleTracker.__exit__", lambda self, *rest: None)
    shape, case = SHAPES[name], bench.case(label)
    batch = bench.random_batch(6, shape)
    learner = trainer(models.build(name, shape=shape), case, batch)
    learner.step(batch)  # the first step also looks at the Jacobian
    with FlopCounterMode(display=False) as counter:
        learner.step(batch)
    assert growing(name, case, shape, 10).of(6).flops == counter.get_total_flops()


def test_flops_of_a_small_network_by_hand() -> None:
    """cnn-small on 8x8: conv 4x4x16 at 4x4 places, conv 16x4x4x32 at 2x2, 128 to 100 to 10; times two."""
    first, second, third, last = (2 * n for n in (16 * 16 * 16, 4 * 256 * 32, 128 * 100, 100 * 10))
    forward = first + second + third + last
    found = growing("cnn-small", bench.case("adv-3"), (1, 8, 8), 10).of(7)
    assert found.backward_flops == 7 * (2 * forward - first), "nobody needs the gradient of the images"
    assert found.flops == 7 * (3 * 2 * forward + forward) + found.backward_flops


# --- memory ---


class Unique(saved_tensors_hooks):
    """All memory that is ever saved, by its address: another way to count."""

    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}
        super().__init__(self.note, lambda tensor: tensor)

    def note(self, tensor: Tensor) -> Tensor:
        self.kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    def bytes_beside(self, model: nn.Module) -> int:
        own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
        return sum(t.untyped_storage().nbytes() for key, t in self.kept.items() if key not in own)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("label", ["natural", "jac", "trades-1", "atlas-1"])
def test_activations_are_what_torch_really_saves(name: str, label: str) -> None:
    """In a step on real images, from the end of the attack on."""
    shape, case = SHAPES[name], bench.case(label)
    model = models.build(name, shape=shape)
    x = torch.rand(6, *shape)
    saved = Unique()
    with saved:
        losses, _ = case.method.terms(
            model, x, x.clone(), torch.zeros(6).long(), Rng.lanes(0, torch.arange(6))
        )
        loss = case.method.weigh(losses)
        kept = saved.bytes_beside(model)
    loss.backward()  # type: ignore[no-untyped-call]
    found = growing(name, case, shape, 10).of(6).saved
    assert found == kept
    assert found == work(model, case, x, 10).saved, "and the same where tensors have values"


def test_activations_of_a_small_network_by_hand() -> None:
    """cnn-small on 8x8 keeps the image, three ReLUs, the log-probabilities; and labels and a sum."""
    numbers = 64 + 16 * 4 * 4 + 32 * 2 * 2 + 100 + 10
    found = growing("cnn-small", bench.case("adv-10"), (1, 8, 8), 10)
    assert found.of(6).saved - found.of(5).saved == 4 * numbers + 8
    assert found.of(6).saved == pytest.approx(6 * (4 * numbers + 8), abs=8)


def test_an_attack_keeps_no_more_than_the_step_after_it() -> None:
    one, ten = (growing("wrn-10-1", bench.case(label), (3, 8, 8), 10).of(4) for label in ("adv-1", "adv-10"))
    assert one.saved == ten.saved
    assert ten.flops > 4 * one.flops


def test_what_is_held_is_what_a_learner_has() -> None:
    """Weights with statistics, gradients, momentum and the best weights, in bytes, after a real step."""
    batch = bench.random_batch(4, (3, 8, 8))
    model = models.build("wrn-10-1", shape=(3, 8, 8))
    learner = trainer(model, bench.case("natural"), batch).learner
    learner.backward(model(batch.x).sum())
    learner.update(0.1)
    learner.keep_best()
    real = {key: value for key, value in learner.tensors().items() if value.is_floating_point()}

    def held(prefix: str) -> int:
        return sum(value.nbytes for key, value in real.items() if key.startswith(prefix))

    assert Sizes.of(model).held(1) == {
        "weights": held("model."),
        "gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "momentum": held("optimizer."),
        "best": held("best."),
        "message": 0,
    }


# --- messages ---


def test_messages_are_those_that_a_step_really_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noted(tensor: Tensor, *rest: object) -> None:
        sizes.append(tensor.nbytes)

    monkeypatch.setattr(dist, "all_reduce", noted)
    for name, shape in SHAPES.items():
        for label in ("natural", "atlas-1", "trades_jac-1"):
            batch, model = bench.random_batch(8, shape), models.build(name, shape=shape)
            learner = trainer(model, bench.case(label), batch, Team(0, 2))
            learner.step(batch)
            sizes.clear()
            learner.step(batch)
            learner.check_requests()
            *large, log, leave = Sizes.of(model).messages
            assert [*sizes[:-2], sizes[-1]] == [*large, leave]
            assert sizes[-2] <= log == DOUBLE * LOGGED


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_sends_as_counted(ranks: int) -> None:
    """Played: each rank passes on a part at a time until all have the sums of all."""
    parts = [[float(rank == part) + rank for part in range(ranks)] for rank in range(ranks)]
    wanted = [sum(column) for column in zip(*parts, strict=True)]
    passed = 0
    for turn in range(2 * (ranks - 1)):
        moved = [(rank, (rank - turn) % ranks) for rank in range(ranks)]
        values = [parts[rank][part] for rank, part in moved]
        for (rank, part), value in zip(moved, values, strict=True):
            to = parts[(rank + 1) % ranks]
            to[part] = value + (to[part] if turn < ranks - 1 else 0)
        passed += 1
    assert parts == [wanted] * ranks
    assert sent(ranks, ranks * 40) == passed * 40
    assert Link(1e3, 0.5).seconds(ranks, [ranks * 40]) == pytest.approx(passed * (0.5 + 0.04))


def test_a_link_is_found_again_from_its_times() -> None:
    link = Link(3e8, 4e-5)
    for ranks in (2, 5):
        sizes = [1024 * 4**k for k in range(9)]
        noise = [1.02, 0.98, 1.0] * 3
        times = [link.seconds(ranks, [n]) * factor for n, factor in zip(sizes, noise, strict=True)]
        found = fitted(ranks, sizes, times)
        assert found.bandwidth == pytest.approx(link.bandwidth, rel=0.03)
        assert found.latency == pytest.approx(link.latency, rel=0.03)


# --- where the network is the limit ---

JOB = Job(batch=64, flops=64e9, backward_flops=16e9, messages=(1_000_000, 8), speed=1e9)
"""Computes 64 s alone, 16 of them the last backward pass; gradients take 2 (N - 1) / N s at 1 MB/s."""


def test_a_step_takes_what_it_computes_and_sends() -> None:
    assert JOB.computing(1) == 64
    assert JOB.computing(3) == 22, "the largest share has 22 images"
    assert JOB.seconds(1, Link(1e6, 9.0)) == 64
    assert JOB.seconds(4, Link(1e6, 0.5)) == pytest.approx(16 + 1.5 + 1.5 * 8e-6 + 2 * 6 * 0.5)


@pytest.mark.parametrize("bandwidth", [1e5, 1e6, 2e6, 1e12])
def test_limits_are_where_the_lines_cross(bandwidth: float) -> None:
    """By a search from the other side."""
    link = Link(bandwidth, 0.0)

    def most(holds: Callable[[int], bool]) -> int:
        return max(n for n in range(1, 33) if all(holds(k) for k in range(2, n + 1)))

    def sending(n: int) -> float:
        return 2 * (n - 1) / n * 1e6 / bandwidth

    assert JOB.hidden_to(link) == most(lambda n: sending(n) <= 16 / 64 * -(-64 // n))
    assert JOB.half_to(link) == most(lambda n: sending(n) * (1 + 8e-6) <= -(-64 // n))
    assert (JOB.hidden_to(Link(1e12, 0)), JOB.hidden_to(Link(1e4, 0))) == (32, 1)


def test_the_needed_bandwidth_just_hides_the_sum() -> None:
    needed = JOB.needed(8, latency=0.01)
    assert Link(needed, 0.01).seconds(8, JOB.messages[:1]) == pytest.approx(JOB.backward(8))
    assert JOB.needed(8, latency=1.0) == float("inf")


# --- the command ---


def test_the_command_counts_prints_draws_and_writes(tmp_path: Path) -> None:
    page, data, picture = tmp_path / "page.md", tmp_path / "cost.json", tmp_path / "cost.svg"
    begin, end = COST_MARKERS
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
    result = CliRunner(env={"COLUMNS": "120"}).invoke(
        app, ["cost", *words, *more, *files], catch_exceptions=False
    )
    assert result.exit_code == 0
    report = json.loads(data.read_text())
    (method,) = report["tasks"][0]["methods"]
    whole = growing("cnn-small", bench.case("atlas-1"), (1, 8, 8), 10).of(16)
    assert (method["flops"], method["epoch_flops"]) == (whole.flops, whole.flops // 16 * 100)
    assert method["steps"] == 7
    (limit,) = method["limits"]
    assert limit["computing"] == pytest.approx(whole.flops / 4 / 1e6)
    assert limit["sending"] == pytest.approx(1.5 * sum(report["tasks"][0]["messages"]) / 1e7)
    assert limit["gain"] == pytest.approx(4 * limit["computing"] / (limit["computing"] + limit["sending"]))
    assert [point["ranks"] for point in method["curve"]] == [2, 4, 8]
    assert page.read_text() == f"{begin}\n{cost_markdown(report)}\n{end}\n"
    assert "<svg" in picture.read_text()
    assert "0.08 Gbit/s" in picture.read_text()


def test_more_ranks_than_images_are_refused() -> None:
    with pytest.raises(UsageError, match="--ranks is 8"):
        CliRunner().invoke(app, ["cost", "--model", "cnn", "--batch", "15"], catch_exceptions=False)


def test_a_method_without_an_equation_is_refused() -> None:
    case = bench.Case("mine", SimpleNamespace(), 0, None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'mine' has no equation"):
        growing("cnn-small", case, (1, 8, 8), 10)


# --- the page ---


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="an installed source tree without its docs")
def test_the_page_is_that_of_the_stored_numbers(tmp_path: Path) -> None:
    begin, end = COST_MARKERS
    text = (ROOT / "docs/scale.md").read_text()
    stored = json.loads((ROOT / "results/bench-cost.json").read_text())
    assert text.partition(begin)[2].partition(end)[0].strip() == cost_markdown(stored)
    assert "](scale-cost.svg)" in text
    drawn, shown = tmp_path / "again.svg", ROOT / "docs/scale-cost.svg"
    draw_cost(stored, drawn)
    assert words(drawn) == words(shown)
    if f"matplotlib=={matplotlib.__version__}\n" in (ROOT / "constraints.txt").read_text():
        assert drawn.read_bytes() == shown.read_bytes()


def words(picture: Path) -> list[str]:
    return [
        element.text or "" for element in ElementTree.parse(picture).iter() if element.tag.endswith("}text")
    ]


@pytest.mark.parametrize("label", ["adv-1", "atlas-1"])
def test_the_stored_numbers_are_counted_again(label: str) -> None:
    """For CIFAR-10; the ImageNet network is held to published figures above."""
    stored = json.loads((ROOT / "results/bench-cost.json").read_text())
    site = Site(stored["ranks"], stored["speed"], [Link(**link) for link in stored["links"]])
    again = json.loads(json.dumps(task_cost(TASKS[0], [bench.case(label)], site)))
    (method,) = again.pop("methods")
    assert method in stored["tasks"][0].pop("methods")
    assert again == stored["tasks"][0]
