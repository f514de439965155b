"""Steps of real processes in turns: who works when, how it is summed up, and what the simulation adds."""

from __future__ import annotations

import json
import os
import statistics
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from atlas import bench, models
from atlas.bench import scale
from atlas.bench.cost import Sizes, Work
from atlas.bench.elsewhere import Elsewhere
from atlas.bench.scale import ALONE, SHARE, THREADS, TOGETHER, Contest, Scaling, Timed
from atlas.bench.scale_report import (
    SCALE_MARKERS,
    elsewhere_note,
    link_summary,
    scale_headings,
    scale_markdown,
    scale_rows,
    scale_summary,
    simulated_rows,
)
from atlas.cli import bench_scale
from atlas.cli.bench import app
from atlas.errors import UsageError
from atlas.training import Ranks
from tests.faults import ranks as real

ROOT = Path(__file__).parents[3]
SMALL = ["--model", "cnn-small", "--shape", "1x8x8", "--batch", "9", "--method", "adv-1", "--repeats", "2"]


def write_who_works(ranks: Ranks, folder: Path) -> None:
    """For each setting: the images of every forward pass, the threads, and what the steps led to."""
    seen: dict[str, list[tuple[int, int]]] = defaultdict(list)
    now = ""

    def look(module: nn.Module, args: tuple[Tensor]) -> None:
        seen[now].append((len(args[0]), torch.get_num_threads()))

    def make() -> nn.Module:
        model = models.build("wrn-10-1", shape=(3, 8, 8))
        model.register_forward_pre_hook(look)
        return model

    team = Timed(ranks.rank, ranks.size)
    contest = Contest(make, bench.case("adv-1"), bench.random_batch(9, (3, 8, 8)), team, threads=1)
    for now in (ALONE, TOGETHER, SHARE, THREADS, TOGETHER):
        seen[now].clear()
        contest.run(now, counted=True)
    weights = contest.settings[TOGETHER][0].learner.model.state_dict()
    total = [float(value.double().sum()) for value in weights.values()]
    about = {"seen": seen, "seconds": contest.found.seconds, "weights": total}
    about |= {"computing": contest.found.computing, "messages": contest.found.messages}
    (folder / f"{ranks.rank}.json").write_text(json.dumps(about))


def test_the_first_works_alone_and_then_all_on_their_shares(tmp_path: Path) -> None:
    real.run(2, write_who_works, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    # The attack's forward pass and the training one: of all 9 images, or of 4 and 5.
    assert first["seen"] == {
        ALONE: [[9, 1]] * 2 + [[9, 1]],  # the first step also looks at the Jacobian
        SHARE: [[4, 1]] * 2 + [[4, 1]],
        THREADS: [[9, 2]] * 2 + [[9, 2]],
        TOGETHER: [[4, 1]] * 2,
    }
    assert {key: value for key, value in second["seen"].items() if value} == {TOGETHER: [[5, 1]] * 2}
    assert first["weights"] == second["weights"]
    for about in (first, second):  # all know of all
        assert {key: len(value) for key, value in about["seconds"].items()} == {
            **{ALONE: 1, SHARE: 1, THREADS: 1, TOGETHER: 2},
        }
        assert about["computing"] == first["computing"]
        assert about["messages"] == first["messages"]
    for total, computing, messages in zip(
        first["seconds"][TOGETHER], first["computing"], first["messages"], strict=True
    ):
        assert 0 < messages < total
        assert all(0 < each < total for each in computing)


def test_all_settings_run_in_every_repeat_in_a_changing_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, str, bool]] = []
    monkeypatch.setattr(
        Contest, "run", lambda self, setting, counted: ran.append((self.found.case.label, setting, counted))
    )
    cases = [bench.case("adv-1"), bench.case("natural")]
    make = partial(models.build, "cnn-small", shape=(1, 8, 8))
    found = scale.measure_scaling(make, cases, 4, (1, 8, 8), 3, Ranks(0, 2), 1)
    assert [each.case for each in found] == cases
    turns = [ran[i : i + 4] for i in range(0, len(ran), 4)]
    assert len(turns) == 2 * (3 + bench.WARM_UP)
    for turn in turns:
        assert {setting for _, setting, _ in turn} == {ALONE, SHARE, THREADS, TOGETHER}
        assert len({label for label, _, _ in turn}) == 1, "a method's settings follow each other"
    assert len({tuple(setting for _, setting, _ in turn) for turn in turns}) > 3
    assert [counted for *_, counted in ran] == [False] * 8 * bench.WARM_UP + [True] * 24


def test_the_link_is_measured_with_gradients_of_these_sizes() -> None:
    sent: list[int] = []

    class Noted(Ranks):
        def mean_gradients(self, model: nn.Module, weight: float) -> None:
            sent.append(sum(p.grad.nbytes for p in model.parameters() if p.grad is not None))

    seconds = scale.measure_link(Noted(), 3, 1, sizes=(1024, 4096))
    assert {size: len(each) for size, each in seconds.items()} == {1024: 3, 4096: 3}
    assert sorted(sent) == [1024] * (3 + bench.WARM_UP) + [4096] * (3 + bench.WARM_UP)
    assert (scale.SIZES[0], scale.SIZES[-1]) == (1024, 64 * 2**20)


def test_what_others_do_meanwhile_is_what_no_rank_has_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds of four cores, 20 of them busy; each of two ranks has used 6."""
    stat, tick = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    clock = {"perf_counter": 100.0, "process_time": 1.0}
    for name in clock:
        monkeypatch.setattr(f"time.{name}", lambda name=name: clock[name])

    class Two(Ranks):
        def mean(self, values: Sequence[float], weight: float) -> Sequence[float]:
            return [values[0], values[0]]

    stat.write_text(f"cpu  {5 * tick} 0 0 {900 * tick} {70 * tick} 0 0 0 0 0\ncpu0 1 1 1 1\n")
    elsewhere, untold = Elsewhere(Two(0, 2), stat), Elsewhere(Ranks(), tmp_path / "none")
    stat.write_text(f"cpu  {18 * tick} 0 {4 * tick} {915 * tick} {75 * tick} {2 * tick} 0 {tick} 3 3\n")
    clock |= {"perf_counter": 110.0, "process_time": 7.0}
    assert elsewhere.share() == pytest.approx((20 - 2 * 6) / 40)
    assert untold.share() is None
    assert elsewhere_note({"elsewhere": 0.204}) == "; 20% of the machine was busy elsewhere"
    assert elsewhere_note({"elsewhere": None}) == ""


def test_ratios_and_the_simulated_step_by_hand() -> None:
    """A machine that is ten times slower in one repeat changes no ratio."""
    seconds = {
        ALONE: [8.0, 80.0, 8.0],
        SHARE: [4.0] * 3,
        THREADS: [6.0, 60.0, 5.0],
        TOGETHER: [5.0, 50.0, 5.0],
    }
    found = Scaling(bench.case("atlas-1"), seconds, [[3.9, 4.0]] * 3, [0.9, 9.0, 1.0])
    # Sums of two ranks: a second of latency for there and back, and a second for each 1000 bytes.
    link = link_summary({1000: [2.0, 2.0], 3000: [4.0, 4.0]}, ranks=2)
    assert link["bandwidth"] == pytest.approx(1000)
    assert link["latency"] == pytest.approx(0.5)
    report = {"batch": 8, "processes": 2, "threads": 1, "link": link}
    sizes = Sizes(parameters=240, tensors=10, statistics=0)  # 1000 bytes, then 64 and 8
    made = scale_summary(found, Work(80_000_000_000, 0, 0), sizes, report)
    assert made["together_over_alone"] == pytest.approx([1.6, 1.6, 1.6])
    assert made["together_over_threads"] == pytest.approx([1.1, 1.2, 1.2])
    assert made["threads_over_alone"] == pytest.approx([4 / 3, 4 / 3, (4 / 3 + 1.6) / 2])
    assert made["speed"] == 1e10
    assert made["simulated"] == pytest.approx({"computing": 4, "messages": 4.072, "step": 8.072})
    assert scale_rows([made]) == [
        (
            *("atlas-1", "8000.0", "6000.0", "5000.0"),
            *("1.60 [1.60, 1.60]", "1.20 [1.10, 1.20]", "1.33 [1.33, 1.47]"),
        )
    ]
    assert scale_headings(report)[1:5] == ("1 x 1 ms", "1 x 2 ms", "2 x 1 ms", "2 x 1 / 1 x 1")
    assert simulated_rows({"models": [{"model": "m", "methods": [made]}]}) == [
        (
            *("m", "atlas-1", "80", "10.0", "4000.0", "4000.0", "1000.0", "4072.0"),
            *("5000.0", "8072.0", "+61%"),
        )
    ]


def test_the_command_measures_prints_and_writes(tmp_path: Path) -> None:
    begin, end = SCALE_MARKERS
    page, said = tmp_path / "page.md", tmp_path / "said"
    page.write_text(f"before\n{begin}\nold\n{end}\n")
    files = ["--json", "times.json", "--markdown", "page.md"]
    team = real.start(2, real.command, tmp_path, said, "bench", "scale", *SMALL, *files)
    assert real.ended(team) == [0, 0], said.read_text()
    report = json.loads((tmp_path / "times.json").read_text())
    assert (report["batch"], report["processes"], report["threads"], report["repeats"]) == (9, 2, 1, 2)
    assert [each["bytes"] for each in report["link"]["sizes"]] == list(scale.SIZES)
    (model,) = report["models"]
    (method,) = model["methods"]
    assert (model["model"], model["shape"], method["method"]) == ("cnn-small", [1, 8, 8], "adv-1")
    assert set(method["seconds"]) == {ALONE, SHARE, THREADS, TOGETHER}
    assert all(len(each) == 2 for each in method["seconds"].values())
    assert page.read_text() == f"before\n{begin}\n{scale_markdown(report)}\n{end}\n"
    assert said.read_text().count("tables written to page.md") == 1, "the first process speaks for all"
    assert "2 x 1 / 1 x 2" in said.read_text()


def test_the_command_starts_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def start(arguments: list[str], of: int) -> int:
        asked.extend([arguments, of])
        return 8

    monkeypatch.setattr(bench_scale, "launch", start)
    monkeypatch.setattr("sys.argv", ["atlas", "bench", "scale", "--processes", "3"])
    assert CliRunner().invoke(app, ["scale", "--processes", "3"]).exit_code == 8
    assert asked == [["bench", "scale", "--processes", "3"], 3]


def test_batches_that_cannot_be_shared_and_pages_without_markers_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_scale, "launch", None)
    for words in (["--batch", "5", "--processes", "3"], ["--method", "atlass"]):
        with pytest.raises(UsageError):
            CliRunner().invoke(app, ["scale", *words], catch_exceptions=False)
    with pytest.raises(UsageError, match="no place"):
        CliRunner().invoke(app, ["scale", "--markdown", str(tmp_path / "none")], catch_exceptions=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UsageError, match="1 processes"):
        CliRunner().invoke(app, ["scale"], catch_exceptions=False)


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="an installed source tree without its docs")
def test_the_tables_of_scaling_are_those_of_the_stored_times() -> None:
    begin, end = SCALE_MARKERS
    block = (ROOT / "docs/scale.md").read_text().partition(begin)[2].partition(end)[0].strip()
    stored = json.loads((ROOT / "results/bench-scale.json").read_text())
    assert block == scale_markdown(stored)
    for model in stored["models"]:
        for method in model["methods"]:
            alone, together = (method["seconds"][key] for key in (ALONE, TOGETHER))
            ratios = [one / all_ for one, all_ in zip(alone, together, strict=True)]
            assert method["together_over_alone"][1] == pytest.approx(statistics.median(ratios))
            assert f"{statistics.median(ratios):.2f} [" in block


@pytest.mark.skipif(not (ROOT / "results").exists(), reason="no results here")
def test_what_the_page_says_of_the_busiest_run() -> None:
    kept, busy = (
        json.loads((ROOT / "results" / f"bench-scale{name}.json").read_text()) for name in ("", "-busy")
    )
    for quiet, loud in zip(kept["models"], busy["models"], strict=True):
        assert quiet["elsewhere"] < 0.1 < loud["elsewhere"]
        for one, other in zip(quiet["methods"], loud["methods"], strict=True):
            assert other["together_over_alone"][1] < one["together_over_alone"][1]
            assert other["threads_over_alone"][1] < 1
