"""Memory and traces of a step, against bytes that are counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from atlas import bench
from atlas.bench.memory import Memory, saved_activations
from atlas.bench.profiled import allocated_peak
from atlas.cli.bench import app

MB = 2**20
FLOAT = 4


def block(megabytes: int) -> Tensor:
    return torch.empty(megabytes * MB, dtype=torch.uint8)


def test_the_peak_is_the_most_that_is_held_at_a_time() -> None:
    def step() -> None:
        first = block(8)
        second = block(4)
        del first
        third = block(3)
        del second, third

    assert allocated_peak(step) == 12 * MB


def test_what_is_there_before_a_step_is_not_counted() -> None:
    """A step that lets go of what the one before has left, such as gradients, and leaves its own."""
    left = [block(16)]

    def step() -> None:
        scratch = block(2)
        left.clear()
        left.append(block(16))
        del scratch

    assert allocated_peak(step) == 2 * MB


B, HIDDEN, CLASSES = 64, 512, 10


def network() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def saved(label: str) -> int:
    model, batch = network(), bench.random_batch(B, (1, 4, 4))
    (pair,) = bench.pairs(model, [bench.case(label)], batch)
    pair.step()
    return saved_activations(pair.step, model, batch)


HIDDEN_BYTES, LOGIT_BYTES, IMAGE_BYTES = FLOAT * B * HIDDEN, FLOAT * B * CLASSES, FLOAT * B * 16
SCALARS = 64
"""A loss is a number or two."""


@pytest.mark.parametrize("label", ["natural", "adv-1", "adv-3"])
def test_saved_activations_of_one_pass_are_those_of_its_layers(label: str) -> None:
    """The hidden layer once, though ReLU and the layer after it both keep it; the log-probabilities; and x',
    which the first layer keeps, and which is not the batch's. Steps of an attack let go of theirs."""
    adversaries = 0 if label == "natural" else IMAGE_BYTES
    assert saved(label) == pytest.approx(HIDDEN_BYTES + LOGIT_BYTES + adversaries, abs=SCALARS)


def test_saved_activations_of_two_passes_add_up() -> None:
    """atlas_g has two passes: both are held until the backward pass, with what the KL term keeps of them."""
    both = 2 * HIDDEN_BYTES + IMAGE_BYTES
    assert both < saved("atlas_g-1") < both + 8 * LOGIT_BYTES


def test_a_step_takes_at_least_what_it_saves() -> None:
    model, batch = network(), bench.random_batch(B, (1, 4, 4))
    found = bench.memories(model, [bench.case(label) for label in ("adv-1", "atlas-1")], batch)
    assert set(found) == {"adv-1", "atlas-1"}
    for memory in found.values():
        assert memory.saved <= memory.peak < 4 * memory.saved
    assert found["atlas-1"].saved > 2 * found["adv-1"].saved


def test_memory_is_shown_in_units_of_what_is_saved_and_of_the_reference() -> None:
    timings = [bench.Timing(bench.case(label), [1.0], [1.0]) for label in ("adv-1", "atlas-1")]
    memory = {"adv-1": Memory(saved=2_000_000, peak=2_300_000), "atlas-1": Memory(5_000_000, 6_900_000)}
    methods = bench.summary(timings, memory)
    assert bench.memory_rows(methods) == [
        ("adv-1", "2.0", "2.3", "1.15", "1.00"),
        ("atlas-1", "5.0", "6.9", "1.38", "3.00"),
    ]
    assert bench.memory_rows(bench.summary(timings)) == []


def test_the_command_writes_traces_and_prints_the_dearest_operators(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["step", "--model", "cnn-small", "--shape", "1x8x8", "--batch", "4", "--repeats", "1"]
    words += ["--method", "atlas-1", "--profile", str(tmp_path / "new")]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    for label in ("atlas-1", "adv-1"):
        events = json.loads((tmp_path / "new" / f"cnn-small-{label}.json").read_text())["traceEvents"]
        names = {event["name"] for event in events}
        assert {"atlas: step", "aten::convolution", "aten::linear"} <= names
    assert "convolution_backward" in result.output
    assert "profiler_start" not in capfd.readouterr().err
