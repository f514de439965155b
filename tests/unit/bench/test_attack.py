"""Attacks beside those of other libraries: one budget for all, one judge, and nobody stops the others."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

from atlas import bench, models
from atlas.attacks import Attack
from atlas.bench import peers
from atlas.bench.attack import NOT_INSTALLED, judge
from atlas.bench.peers import Peer, adv_lib
from atlas.cli.bench import app
from atlas.data import Images
from atlas.errors import UsageError

EPS, SIDE = 0.3, 8
CASES = {case.name: case for case in bench.attack_cases("mnist", 0.04)}
EVERYBODY = [(name, entry.name) for name, case in CASES.items() for entry in bench.contest(case).entries]
BARE = "bare passes"


class TwoClasses(nn.Module):
    """Ten logits, of which two matter: f_0 = 0 and f_1 = the sum of all pixels less half their number.

    So a gray image of level l < 0.5 is of class 0, and within eps of class 1 if and only if l > 0.5 - eps.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(SIDE * SIDE))

    def forward(self, x: Tensor) -> Tensor:
        one = ((x - 0.5).flatten(1) @ self.weight)[:, None]
        others = 1e-3 * one - torch.arange(50.0, 58.0, dtype=x.dtype)
        return torch.cat([torch.zeros_like(one), one, others], 1)


def job(levels: Sequence[float], batch_size: int = 4) -> bench.Job:
    """Gray images that are labelled 0."""
    x = torch.tensor(levels)[:, None, None, None].repeat(1, 1, SIDE, SIDE)
    images = Images(x, torch.zeros(len(x), dtype=torch.int64), 10)
    model = TwoClasses().eval().requires_grad_(False)
    return bench.Job(model, images, images.x, images.y, EPS, batch_size)


def contestant(name: str, who: str) -> bench.Entry:
    entry = next(entry for entry in bench.contest(CASES[name]).entries if entry.name == who)
    if entry.absent:
        pytest.skip(f"{who} is not installed")
    return entry


def test_every_attack_has_peers_and_every_stage_the_original() -> None:
    assert (
        set(CASES)
        == set(peers.PEERS)
        == {*("pgd", "un-t", "apgd", "apgd-t", "fab-t", "square", "autoattack")}
    )
    assert ("un-t", "torchattacks") in EVERYBODY
    for name in ("apgd", "apgd-t", "fab-t", "square", "autoattack"):
        assert (name, "pyautoattack") in EVERYBODY
        assert (name, "torchattacks") in EVERYBODY


@pytest.mark.parametrize(("name", "who"), [pair for pair in EVERYBODY if pair[1] != BARE])
def test_everybody_fools_what_can_be_fooled_and_nothing_else(name: str, who: str) -> None:
    task = job([0.05, 0.45, 0.1, 0.47, 0.6, 0.46, 0.15])
    torch.manual_seed(0)
    x_adv = contestant(name, who).run(task, CASES[name].attacks)
    assert x_adv is not None
    robust, _ = judge(task, x_adv)
    assert robust == 3


BUDGETS = {"pgd": 40, "un-t": 40, "apgd": 4, "apgd-t": 36, "fab-t": 72, "square": 200, "autoattack": 312}
"""Forward passes of an image that nothing fools, at 4% of the budget, by hand."""
OTHERWISE = {("apgd", "ART"): 2.0, ("square", "ART"): 3.0, ("un-t", "ours, one restart"): 1 / 20}


@pytest.mark.parametrize(("name", "who"), EVERYBODY)
def test_everybody_spends_the_whole_budget_on_what_stands(name: str, who: str) -> None:
    task = job([0.05] * 6)
    asked = 0

    def count(module: nn.Module, args: tuple[Tensor], logits: Tensor) -> None:
        nonlocal asked
        asked += len(logits)

    task.model.register_forward_hook(count)
    contestant(name, who).run(task, CASES[name].attacks)
    budget = round(BUDGETS[name] * OTHERWISE.get((name, who), 1))
    if who == BARE:
        assert asked == 6 * budget
    else:  # a start, a last look and the like for each attempt
        attempts = sum(attack.attempts(10) for attack in CASES[name].attacks)
        assert 6 * budget <= asked <= 6 * (budget + 3 * attempts + 3)


def test_the_settings_are_those_of_the_suites() -> None:
    full = {case.name: case for case in bench.attack_cases("mnist")}
    assert (full["pgd"].label, full["pgd"].settings) == ("PGD-1000", "steps 1000, step size 0.01")
    assert full["un-t"].settings == "restarts 20, steps 50"
    assert {name: case.passes(10) for name, case in full.items()} == {
        **{"pgd": 2000, "un-t": 2000, "apgd": 200, "apgd-t": 1800, "fab-t": 2700, "square": 5000},
        "autoattack": 200 + 1800 + 2700 + 5000,
    }
    cifar = {case.name: case for case in bench.attack_cases("cifar10")}
    assert cifar["un-t"].settings == "restarts 10, steps 100"
    assert [case.name for case in bench.attack_cases("mnist", only=["square", "pgd"])] == ["square", "pgd"]


@pytest.mark.parametrize("budget", [0.0, -1.0, 1.5, float("nan")])
def test_a_wrong_budget_is_refused(budget: float) -> None:
    with pytest.raises(UsageError, match="budget"):
        bench.attack_cases("mnist", budget)


def test_an_unknown_attack_is_refused() -> None:
    with pytest.raises(UsageError, match="'square'"):
        bench.attack_cases("mnist", only=["sqare"])


def test_the_judge_counts_only_points_of_ball_and_box_at_which_the_model_is_wrong() -> None:
    task = job([0.45, 0.45, 0.45, 0.45, 0.6, 0.05])
    good, far, nan, clean, wrong, dark = task.x.clone()
    tip = torch.zeros_like(far)
    tip[0, 0, 0] = 2e-6
    x_adv = torch.stack([good + EPS, far + EPS + tip, nan + torch.nan, clean, wrong, dark - 0.1])
    assert judge(task, x_adv) == (4, 3)  # far, NaN, clean and dark stand; far, NaN and dark are outside
    x_adv[1] = far + EPS + tip / 4
    assert judge(task, x_adv) == (3, 2)


class Clock:
    """Moves only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[tuple[str, int]] = []

    def entry(self, name: str, seconds: Sequence[float], fails_at: int = 99) -> bench.Entry:
        """Takes these seconds in the repeats, and raises in one of them."""

        def run(job: bench.Job, attacks: Sequence[Attack]) -> Tensor:
            if attacks[0].steps > 1:
                self.ran.append((name, job.seed))
                self.now += seconds[job.seed]
                if job.seed == fails_at:
                    raise ZeroDivisionError("no\n such   luck")
            return job.x

        return bench.Entry(name, run)

    def __call__(self) -> float:
        return self.now


def contests(clock: Clock, **fails_at: int) -> list[bench.Contest]:
    seconds = {bench.OURS: [2.0, 20.0, 2.0], "slow": [6.0, 60.0, 8.0], "bad": [1.0, 1.0, 1.0]}
    return [
        bench.Contest(CASES[name], [clock.entry(k, v, fails_at.get(k, 99)) for k, v in seconds.items()])
        for name in ("pgd", "apgd")
    ]


def test_each_repeat_runs_everybody_side_by_side_in_a_new_order() -> None:
    clock, seen = Clock(), list[str]()
    both = contests(clock)
    bench.compete(job([0.1]), both, 3, clock=clock, after=lambda case, entry: seen.append(case.name))
    rounds = [clock.ran[i : i + 3] for i in range(0, 18, 3)]
    assert [{seed for _, seed in each} for each in rounds] == [{0}, {0}, {1}, {1}, {2}, {2}]
    assert all({who for who, _ in each} == {"ours", "slow", "bad"} for each in rounds)
    assert len({tuple(who for who, _ in each) for each in rounds}) > 2
    assert [seen[i : i + 3] for i in range(0, 18, 3)] == [[name] * 3 for name in seen[::3]]
    assert len(set(seen[::3])) == 2
    assert [entry.seconds for entry in both[0].entries] == [[2, 20, 2], [6, 60, 8], [1, 1, 1]]
    assert [entry.robust for entry in both[0].entries] == [[1, 1, 1]] * 3


def test_peers_work_in_a_process_of_their_own_and_come_to_the_same() -> None:
    task, case = job([0.05, 0.45, 0.1, 0.47, 0.6]), CASES["pgd"]
    few = (bench.OURS, BARE, "plain loop")
    here, there = (
        bench.Contest(case, [entry for entry in bench.contest(case).entries if entry.name in few])
        for _ in range(2)
    )
    bench.compete(task, [here], 2)
    with bench.apart(bench.Peers, task) as theirs:
        assert theirs(case, "plain loop", 0).verdict == bench.Peers(task)(case, "plain loop", 0).verdict
        asked = list[str]()

        def heard(case: bench.AttackCase, name: str, seed: int) -> Any:
            asked.append(name)
            return theirs(case, name, seed)

        bench.compete(task, [there], 2, heard)
    assert [entry.robust for entry in here.entries] == [entry.robust for entry in there.entries]
    assert set(asked) == {"plain loop"}


def test_what_a_peer_raises_elsewhere_is_told() -> None:
    def gone(case: bench.AttackCase, name: str, seed: int) -> Any:
        raise bench.ApartError("ValueError: not today")

    found = bench.contest(CASES["pgd"])
    bench.compete(job([0.1]), [found], 1, gone)
    assert {entry.error for entry in found.entries if entry.apart and not entry.absent} == {
        "ValueError: not today"
    }
    assert all(entry.error is None for entry in found.entries if not entry.apart)


def test_ratios_are_medians_of_the_repeats_own_ratios() -> None:
    """A machine that is ten times slower in one repeat changes no ratio."""
    clock = Clock()
    both = contests(clock)
    bench.compete(job([0.1, 0.6]), both, 3, clock=clock)
    first, second = bench.attack_summary(both, 2)
    assert (first["attack"], second["attack"]) == ("PGD-1000", "APGD-CE")
    slow = first["contestants"][1]
    assert slow["over_ours"] == pytest.approx([3, 3, 3.5])
    assert slow["robust"] == [50, 50, 50]
    assert bench.attack_rows([slow]) == [("slow", "8.0", "3.00 [3.00, 3.50]", "50.0", "")]


def test_one_that_raises_is_named_and_stops_nobody() -> None:
    clock = Clock()
    both = contests(clock, bad=0, slow=1)
    bench.compete(job([0.1]), both, 3, clock=clock)
    ours, slow, bad = bench.attack_summary(both, 1)[0]["contestants"]
    assert len(ours["seconds"]) == 3
    assert slow["seconds"] == [6.0]
    assert slow["over_ours"] == [3, 3, 3]
    assert bad["seconds"] == []
    assert bench.attack_rows([slow, bad]) == [
        ("slow", "6.0", "3.00 [3.00, 3.00]", "100.0", "failed: ZeroDivisionError: no such luck"),
        ("bad", "-", "-", "-", "failed: ZeroDivisionError: no such luck"),
    ]
    assert clock.ran.count(("bad", 0)) == 2
    assert ("bad", 1) not in clock.ran


def test_without_ours_there_is_no_ratio() -> None:
    clock = Clock()
    both = contests(clock, ours=0)
    bench.compete(job([0.1]), both, 1, clock=clock)
    assert [row[2] for row in bench.attack_rows(bench.attack_summary(both, 1)[0]["contestants"])] == ["-"] * 3


def test_an_answer_of_the_wrong_shape_is_a_failure() -> None:
    entry = bench.Entry("odd", lambda job, attacks: job.x[:1])
    bench.compete(job([0.1, 0.2]), [bench.Contest(CASES["pgd"], [entry])], 1)
    assert entry.error
    assert entry.seconds == entry.robust == []


def test_the_model_and_what_is_printed_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    task = job([0.1])
    task.model.train().requires_grad_(True)

    def noisy(job: bench.Job, attacks: Sequence[Attack]) -> Tensor:
        assert not job.model.training
        assert not any(p.requires_grad for p in job.model.parameters())
        print("progress!")
        job.model.train()
        return job.x

    bench.compete(task, [bench.Contest(CASES["pgd"], [bench.Entry("noisy", noisy)])], 1)
    assert task.model.training
    assert all(p.requires_grad for p in task.model.parameters())
    assert capsys.readouterr().out == ""


def test_a_library_that_is_not_there_is_named_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(peers, "version", absent)
    assert set(bench.versions().values()) == {None}
    both = [bench.contest(CASES["pgd"])]
    bench.compete(job([0.1]), both, 1)
    rows = bench.attack_rows(bench.attack_summary(both, 1)[0]["contestants"])
    assert {row[0] for row in rows if row[4] == NOT_INSTALLED} == {
        "torchattacks",
        "foolbox",
        "ART",
        "adv-lib",
    }
    assert {row[0] for row in rows if row[1] != "-"} == {"ours", "ours, bfloat16", BARE, "plain loop"}


def test_nothing_is_left_of_what_stood_in_for_needless_imports() -> None:
    pytest.importorskip("adv_lib")
    before = {name for name in adv_lib.NEEDLESS if name in sys.modules}
    assert callable(adv_lib._attacks().pgd_linf)
    assert {name for name in adv_lib.NEEDLESS if name in sys.modules} == before


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "mine.safetensors"
    save_file(models.build("cnn-small").state_dict(), path)
    return path


def command(weights: Path, *more: str) -> list[str]:
    small = ["--n", "6", "--batch", "4", "--budget", "0.003", "--attack", "pgd", "--attack", "apgd"]
    about = ["--weights", str(weights), "--model", "cnn-small", "--data", "mnist-mini", "--eps", "0.3"]
    return ["attack", *about, *small, *more]


def plant(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """A peer that does one step in the warm-up and raises in earnest."""

    def run(job: bench.Job, attack: Attack) -> Tensor:
        if attack.steps > 1:
            raise error
        return job.x

    monkeypatch.setitem(peers.PEERS, "pgd", (Peer("plain loop", run),))
    # Another process would not know of it.
    monkeypatch.setattr(bench, "apart", lambda make, job: nullcontext(make(job)))


def test_the_command_measures_prints_and_writes(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, ValueError("this peer does not work " * 9))
    page, data = tmp_path / "page.md", tmp_path / "new" / "times.json"
    begin, end = bench.markers("attack")
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    more = ["--repeats", "2", "--json", str(data), "--markdown", str(page)]
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, command(weights, *more), catch_exceptions=False)
    assert result.exit_code == 0
    report = json.loads(data.read_text())
    assert (report["batch"], report["repeats"], report["budget"]) == (4, 2, 0.003)
    assert set(report["peers"]) == set(peers.PACKAGES.values())
    (model,) = report["models"]
    assert (model["model"], model["data"], model["n"], model["eps"]) == ("mine", "mnist-mini", 6, 0.3)
    pgd, apgd = model["attacks"]
    assert (pgd["attack"], pgd["settings"]) == ("PGD-1000", "steps 3, relative step 0.22")
    assert (apgd["attack"], apgd["settings"]) == ("APGD-CE", "steps 1")
    assert [len(c["seconds"]) for c in pgd["contestants"]] == [2, 2, 2, 0]
    assert pgd["contestants"][3]["error"].startswith("ValueError: this peer")
    assert "failed: ValueError: this peer" in result.output
    assert page.read_text() == f"before\n{begin}\n{bench.attack_markdown(report)}\n{end}\nafter\n"
    assert max(map(len, result.output.splitlines())) <= 100


def test_a_run_that_is_cut_off_keeps_what_it_has(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, KeyboardInterrupt())
    data = tmp_path / "times.json"
    result = CliRunner().invoke(app, command(weights, "--json", str(data)))
    assert result.exit_code != 0
    finished: list[Any] = [
        c
        for a in json.loads(data.read_text())["models"][0]["attacks"]
        for c in a["contestants"]
        if c["seconds"]
    ]
    assert finished
    for who in finished:
        assert who["who"] in result.output


@pytest.mark.parametrize("missing", ["--eps", "--data"])
def test_what_a_file_cannot_know_has_to_be_said(weights: Path, missing: str) -> None:
    words = command(weights)
    at = words.index(missing)
    with pytest.raises(UsageError, match=missing):
        CliRunner().invoke(app, [*words[:at], *words[at + 2 :]], catch_exceptions=False)


def test_a_page_without_markers_is_refused_before_anything_is_measured(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "compete", None)
    page = tmp_path / "page.md"
    page.write_text("<!-- begin: atlas bench step -->\n<!-- end: atlas bench step -->\n")
    with pytest.raises(UsageError, match="no place for the table"):
        CliRunner().invoke(app, command(weights, "--markdown", str(page)), catch_exceptions=False)
