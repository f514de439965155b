"""`python -m benchmarks step`: what is measured and written; memory and traces against bytes by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from atlas import models
from atlas.machine import machine
from benchmarks import step
from benchmarks.command import main
from benchmarks.equations import EQUATIONS, case
from benchmarks.step import allocated_peak, blocks, contestants, memory_of, random_batch, step_of
from benchmarks.tables import TextTable, markdown, markers_of
from benchmarks.timing import interleave

SMALL = ["--model", "cnn-small", "--shape", "1x8x8", "--batch", "4"]
MB = 2**20
FLOAT, B, HIDDEN, CLASSES = 4, 64, 512, 10


def test_the_command_measures_prints_and_writes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page, data, traces = tmp_path / "page.md", tmp_path / "new" / "times.json", tmp_path / "traces"
    begin, end = markers_of("benchmarks step here")
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    files = ["--json", str(data), "--markdown", str(page), "--part", "here", "--profile", str(traces)]
    main(["step", *SMALL, "--method", "atlas-1", "--method", "trades_jac-10", "--repeats", "2", *files])
    out, err = capfd.readouterr()
    report = json.loads(data.read_text())
    assert (report["batch"], report["machine"]["torch"]) == (4, torch.__version__)
    (model,) = report["models"]
    assert (model["model"], model["shape"]) == ("cnn-small", [1, 8, 8])
    assert [(m["method"], m["passes"]) for m in model["methods"]] == [
        *(("atlas-1", 11), ("trades_jac-10", 30), ("adv-1", 5)),
    ]
    for method in model["methods"]:
        assert len(method["seconds"]["step"]) == len(method["seconds"]["bare"]) == 2
        assert 0 < method["memory"]["saved"] < method["memory"]["peak"]
        events = json.loads((traces / f"cnn-small-{method['method']}.json").read_text())["traceEvents"]
        assert {"atlas: step", "aten::convolution"} <= {event["name"] for event in events}
    assert page.read_text() == f"before\n{begin}\n{markdown(blocks(report))}\n{end}\nafter\n"
    assert page.read_text().count("| atlas-1 |") == 2, "times and memory"
    assert max(map(len, out.splitlines())) <= 80
    assert "profiler_start" not in err


def test_times_ratios_and_memory_by_hand() -> None:
    adv = {"method": "adv-1", "passes": 5, "memory": {"saved": 2_000_000, "peak": 2_300_000}}
    adv |= {"seconds": {"step": [2.0, 20.0, 2.0], "bare": [1.0, 10.0, 1.0]}}
    jac = {"method": "jac", "passes": 6, "memory": {"saved": 5_000_000, "peak": 6_900_000}}
    jac |= {"seconds": {"step": [3.0, 30.0, 3.2], "bare": [3.0, 30.0, 3.0]}}
    none = {**jac, "method": "mine", "passes": None, "seconds": {"step": [3.0, 30.0, 3.0]}}
    model = {"model": "m", "shape": [1, 2, 2], "methods": [adv, jac, none]}
    _, _, times, memory = blocks({"machine": machine(), "repeats": 3, "models": [model]})
    assert isinstance(times, TextTable)
    assert isinstance(memory, TextTable)
    assert times.rows[1:] == [
        ("jac", "3200.0", "3000.0", "1.00 [1.00, 1.03]", "1.50 [1.50, 1.55]", "6", "1.20"),
        ("mine", "3000.0", "-", "-", "1.50 [1.50, 1.50]", "-", "-"),
    ]
    assert memory.rows[:2] == [("adv-1", "2.0", "2.3", "1.15", "1.00"), ("jac", "5.0", "6.9", "1.38", "3.00")]


def test_a_method_without_an_equation_is_timed_against_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(EQUATIONS, "jac")
    model, batch = models.build("cnn-small", shape=(1, 8, 8)), random_batch(4, (1, 8, 8))
    groups = {label: contestants(model, case(label), batch, {}) for label in ("adv-1", "jac")}
    interleave(groups, 1)
    assert {label: [c.name for c in group] for label, group in groups.items()} == {
        **{"adv-1": ["step", "bare"], "jac": ["step"]},
    }
    assert all(len(c.seconds) == 1 for group in groups.values() for c in group)


@pytest.mark.parametrize("which", ["step", "bare"])
def test_settings_apply_to_the_step_and_not_to_the_bare_passes(which: str) -> None:
    model, batch = models.build("cnn-small", shape=(1, 8, 8)), random_batch(4, (1, 8, 8))
    settings = {"training.precision": "craft", "training.channels_last": True}
    work = step_of(model, case("adv-1"), batch, settings)
    network = work.func.__self__.state.model  # type: ignore[attr-defined]
    if which == "bare":
        network, work = model, step.bare_of(model, case("adv-1"), batch)  # type: ignore[assignment]
    work()
    seen: list[torch.dtype] = []
    network.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    work()
    assert seen == [torch.bfloat16 if which == "step" else torch.float32, torch.float32]
    assert network[2].weight.is_contiguous(memory_format=torch.channels_last) == (which == "step")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "method.alpha=1"], "training.KEY"),
        (["--precision", "float23"], "precision"),
        (["--method", "advv-1"], "'adv'"),
        (["--shape", "8x8"], "must be CHANNELSxHEIGHTxWIDTH"),
        (["--shape", "1X8X8"], "must be CHANNELSxHEIGHTxWIDTH"),
        (["--repeats", "0"], "must be >= 1, got 0"),
        (["--markdown", "no.md"], "must have the lines"),
        (["--no-such-option"], "unrecognized arguments"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_measured(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step, "interleave", None)
    with pytest.raises(SystemExit) as ended:
        main(["step", *SMALL, *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def block(megabytes: int) -> Tensor:
    return torch.empty(megabytes * MB, dtype=torch.uint8)


def test_the_peak_is_the_most_that_is_held_at_one_time() -> None:
    def work() -> None:
        first = block(8)
        second = block(4)
        del first
        third = block(3)
        del second, third

    assert allocated_peak(work) == 12 * MB


def test_memory_from_before_a_step_is_not_counted() -> None:
    """A step that frees what the one before has left, such as gradients, and leaves its own."""
    left = [block(16)]

    def work() -> None:
        scratch = block(2)
        left.clear()
        left.append(block(16))
        del scratch

    assert allocated_peak(work) == 2 * MB


def saved(label: str) -> int:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    found = memory_of(model, case(label), random_batch(B, (1, 4, 4)), {})
    assert found["saved"] <= found["peak"] < 4 * found["saved"]
    return found["saved"]


def test_saved_activations_are_those_of_the_layers() -> None:
    """The hidden layer once, though ReLU and the layer after it both keep it; the log-probabilities; and x',
    which the first layer keeps, and which is not the batch's. Steps of an attack free theirs. atlas_g has two
    passes: both are held until the backward pass, with what the KL term keeps of them."""
    hidden, logits, image = FLOAT * B * HIDDEN, FLOAT * B * CLASSES, FLOAT * B * 16
    for label in ("natural", "adv-1", "adv-3"):
        adversaries = 0 if label == "natural" else image
        assert saved(label) == pytest.approx(hidden + logits + adversaries, abs=64)
    assert 2 * hidden + image < saved("atlas_g-1") < 2 * hidden + image + 8 * logits
