"""How times are taken, summed up and written, with a clock that the test winds."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from atlas import bench, models
from atlas.bench.report import BEGIN, END
from atlas.bench.step import Pair, Timing
from atlas.cli.bench import app
from atlas.errors import UsageError

SMALL = ["--model", "cnn-small", "--shape", "1x8x8", "--batch", "4"]


class Work:
    """Stands for steps that take known times, and notes who ran."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def taking(self, name: str, seconds: float) -> object:
        def run() -> None:
            self.ran.append(name)
            self.now += seconds

        return run


def test_each_repeat_runs_both_of_every_method_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    cases = [bench.case(label) for label in ("adv-1", "atlas-1", "jac")]
    seconds = {"adv-1": 5.0, "atlas-1": 11.0, "jac": 6.0}

    def stand_ins(*args: object) -> list[Pair]:
        return [
            Pair(c, work.taking(f"{c.label} step", seconds[c.label]), work.taking(f"{c.label} bare", 4.0))
            for c in cases
        ]

    monkeypatch.setattr("atlas.bench.step.pairs", stand_ins)
    batch, ticks = bench.random_batch(2, (1, 2, 2)), count(1)
    timings = bench.measure(
        torch.nn.Flatten(), cases, batch, 4, clock=lambda: work.now, each=lambda: next(ticks) and None
    )
    assert next(ticks) - 1 == (4 + bench.WARM_UP) * 3
    assert [t.case for t in timings] == cases
    for timing in timings:
        assert timing.step == [seconds[timing.case.label]] * 4
        assert timing.bare == [4.0] * 4
    rounds = [work.ran[i : i + 6] for i in range(0, len(work.ran), 6)]
    for number, each in enumerate(rounds):
        assert len(set(each)) == 6
        couples = list(zip(each[::2], each[1::2], strict=True))
        first, second = ("step", "bare") if number % 2 else ("bare", "step")
        for one, other in couples:
            assert one.split() == [other.split()[0], first]
            assert other.split()[1] == second
    assert len({tuple(each[::2]) for each in rounds}) > 2, "the order changes from repeat to repeat"


def test_ratios_are_medians_of_the_repeats_own_ratios() -> None:
    """A machine that is ten times slower in one repeat changes no ratio."""
    adv = Timing(bench.case("adv-1"), [2.0, 20.0, 2.0], [1.0, 10.0, 1.0])
    jac = Timing(bench.case("jac"), [3.0, 30.0, 3.2], [3.0, 30.0, 3.0])
    first, second = bench.summary([adv, jac])
    assert first["step_over_bare"] == [2.0, 2.0, 2.0]
    assert second["step_over_reference"] == pytest.approx([1.5, 1.5, 1.55])
    assert second["step_ms"][1] == pytest.approx(3200)
    assert bench.rows([second])[0] == (
        *("jac", "3200.0", "3000.0", "1.00 [1.00, 1.03]", "1.50 [1.50, 1.55]", "6", "1.20"),
    )


def test_a_method_without_an_equation_is_timed_against_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(bench.EQUATIONS, "jac")
    cases = [bench.case("adv-1"), bench.case("jac")]
    timings = bench.measure(
        models.build("cnn-small", shape=(1, 8, 8)), cases, bench.random_batch(4, (1, 8, 8)), 1
    )
    row = bench.rows(bench.summary(timings))[1]
    assert (row[0], row[2], row[3], row[5], row[6]) == ("jac", "-", "-", "-", "-")
    assert float(row[1]) > 0


@pytest.mark.parametrize(
    ("label", "said"),
    [("atlas-x", "atlas"), ("adv-0", "adv"), ("atlass-1", "'atlas'"), ("natural-1", "takes no steps")],
)
def test_a_wrong_label_is_refused(label: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        bench.case(label)


def test_steps_are_one_unless_given() -> None:
    assert bench.case("atlas") == bench.case("atlas-1")
    assert bench.case("natural").label == "natural"


@pytest.mark.parametrize("which", ["step", "bare"])
def test_settings_are_the_steps_and_not_the_bare_passes(which: str) -> None:
    model = models.build("cnn-small", shape=(1, 8, 8))
    settings = {"training.precision": "craft", "training.channels_last": True}
    (made,) = bench.pairs(model, [bench.case("adv-1")], bench.random_batch(4, (1, 8, 8)), settings)
    made.step()
    seen: list[torch.dtype] = []
    bare, step = made.bare.args[0].model, made.step.func.__self__.learner.model  # type: ignore[union-attr,attr-defined]
    network = bare if which == "bare" else step
    network.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    getattr(made, which)()
    assert seen == [torch.bfloat16 if which == "step" else torch.float32, torch.float32]
    last = network[2].weight.is_contiguous(memory_format=torch.channels_last)
    assert last == (which == "step")


@pytest.mark.parametrize("words", [["--set", "method.alpha=1"], ["--precision", "float23"]])
def test_a_setting_that_is_none_of_trainings_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match=r"training\.KEY|precision"):
        CliRunner().invoke(app, ["step", *SMALL, *words], catch_exceptions=False)


def test_the_page_says_what_was_set() -> None:
    report = {"machine": bench.machine(), "batch": 4, "repeats": 1}
    assert "training" not in bench.facts(report)
    told = bench.facts({**report, "settings": {"training.precision": "craft"}})
    assert told.endswith(", training.precision = craft")


def test_the_command_measures_prints_and_writes(tmp_path: Path) -> None:
    page, data = tmp_path / "page.md", tmp_path / "new" / "times.json"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    chosen = ["--method", "atlas-1", "--method", "trades_jac-10", "--repeats", "2"]
    result = CliRunner().invoke(
        app, ["step", *SMALL, *chosen, "--json", str(data), "--markdown", str(page)], catch_exceptions=False
    )
    assert result.exit_code == 0
    report = json.loads(data.read_text())
    assert report["batch"] == 4
    assert report["machine"]["torch"] == torch.__version__
    (model,) = report["models"]
    assert (model["model"], model["shape"]) == ("cnn-small", [1, 8, 8])
    assert [m["method"] for m in model["methods"]] == ["atlas-1", "trades_jac-10", "adv-1"]
    assert [m["passes"] for m in model["methods"]] == [11, 30, 5]
    for method in model["methods"]:
        assert len(method["seconds"]["step"]) == len(method["seconds"]["bare"]) == 2
        assert method["step_over_bare"][1] > 0
        assert method["method"] in result.output
        assert 0 < method["memory"]["saved"] < method["memory"]["peak"]
    text = page.read_text()
    assert text == f"before\n{BEGIN}\n{bench.markdown(report)}\n{END}\nafter\n"
    assert text.count("| atlas-1 |") == 2, "times and memory"


@pytest.mark.parametrize("shape", ["8x8", "1x8x8x8", "ax8x8", "1X8X8"])
def test_a_wrong_shape_is_refused(shape: str) -> None:
    with pytest.raises(UsageError, match="--shape"):
        CliRunner().invoke(app, ["step", "--shape", shape], catch_exceptions=False)


def test_a_page_without_markers_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "measure", None)
    page = tmp_path / "page.md"
    for text in (None, "nothing", f"{END}\n{BEGIN}"):
        if text is not None:
            page.write_text(text)
        with pytest.raises(UsageError, match="no place for the table"):
            CliRunner().invoke(app, ["step", *SMALL, "--markdown", str(page)], catch_exceptions=False)
