"""Attacks beside those of other libraries: one budget and one judge for all."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from atlas import models
from atlas.attacks import Attack
from atlas.data import Images
from atlas.errors import UsageError
from benchmarks import attack, attack_peers
from benchmarks.attack import PeerAttacks, attack_cases, blocks, contestants, judge, own_runs
from benchmarks.attack_peers import LIBRARIES, PACKAGES, PEERS, UNUSED, AttackTask, installed
from benchmarks.command import main
from benchmarks.processes import worker_process
from benchmarks.tables import markdown
from benchmarks.timing import NOT_INSTALLED, OURS, interleave

EPS, SIDE = 0.3, 8
CASES = {case.name: case for case in attack_cases("mnist", 0.04)}
BARE = "bare passes"
EVERYBODY = [(name, who) for name, case in CASES.items() for who in (*own_runs(case), *PEERS[name])]


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


def task(levels: Sequence[float], batch_size: int = 4) -> AttackTask:
    """Gray images that are labelled 0."""
    x = torch.tensor(levels)[:, None, None, None].repeat(1, 1, SIDE, SIDE)
    images = Images(x, torch.zeros(len(x), dtype=torch.int64), 10)
    model = TwoClasses().eval().requires_grad_(False)
    return AttackTask(model, images, images.x, images.y, EPS, batch_size)


def x_adv_of(name: str, who: str, made: AttackTask) -> Tensor | None:
    case, own = CASES[name], own_runs(CASES[name])
    if not installed(who):
        pytest.skip(f"{who} is not installed")
    torch.manual_seed(0)
    return own[who][0](made, case.attacks) if who in own else LIBRARIES[who](made, *case.attacks)


def test_every_attack_has_peers_and_every_stage_the_original() -> None:
    assert set(CASES) == set(PEERS) == {*("pgd", "un-t", "apgd", "apgd-t", "fab-t", "square", "autoattack")}
    for name in ("apgd", "apgd-t", "fab-t", "square", "autoattack"):
        assert {"pyautoattack", "torchattacks"} <= set(PEERS[name])
    assert {who for peers in PEERS.values() for who in peers} == set(LIBRARIES)


@pytest.mark.parametrize(("name", "who"), [pair for pair in EVERYBODY if pair[1] != BARE])
def test_everybody_fools_what_can_be_fooled_and_nothing_else(name: str, who: str) -> None:
    made = task([0.05, 0.45, 0.1, 0.47, 0.6, 0.46, 0.15])
    x_adv = x_adv_of(name, who, made)
    assert x_adv is not None
    assert judge(made, x_adv)[0] == 3


BUDGETS = {"pgd": 40, "un-t": 40, "apgd": 4, "apgd-t": 36, "fab-t": 72, "square": 200, "autoattack": 312}
"""Forward passes of an image that nothing fools, at 4% of the budget, by hand."""
OTHERWISE = {("apgd", "ART"): 2.0, ("square", "ART"): 3.0, ("un-t", "ours, one restart"): 1 / 20}


@pytest.mark.parametrize(("name", "who"), EVERYBODY)
def test_everybody_spends_the_whole_budget_on_robust_images(name: str, who: str) -> None:
    made, asked = task([0.05] * 6), list[int]()
    made.model.register_forward_hook(lambda module, args, logits: asked.append(len(logits)))
    x_adv_of(name, who, made)
    budget = round(BUDGETS[name] * OTHERWISE.get((name, who), 1))
    # A start, a last look and the like for each attempt.
    spare = 0 if who == BARE else 3 * sum(a.attempts(10) for a in CASES[name].attacks) + 3
    assert 6 * budget <= sum(asked) <= 6 * (budget + spare)


def test_the_settings_are_those_of_the_suites() -> None:
    full = {case.name: case for case in attack_cases("mnist")}
    assert (full["pgd"].label, full["pgd"].settings) == ("PGD-1000", "steps 1000, step size 0.01")
    assert full["un-t"].settings == "restarts 20, steps 50"
    assert {name: case.passes(10) for name, case in full.items()} == {
        **{"pgd": 2000, "un-t": 2000, "apgd": 200, "apgd-t": 1800, "fab-t": 2700, "square": 5000},
        "autoattack": 200 + 1800 + 2700 + 5000,
    }
    cifar = {case.name: case for case in attack_cases("cifar10")}
    assert cifar["un-t"].settings == "restarts 10, steps 100"
    assert [case.name for case in attack_cases("mnist", only=["square", "pgd"])] == ["square", "pgd"]


@pytest.mark.parametrize("budget", [0.0, -1.0, 1.5, float("nan")])
def test_a_wrong_budget_is_refused(budget: float) -> None:
    with pytest.raises(UsageError, match="--budget must be > 0 and <= 1"):
        attack_cases("mnist", budget)


def test_the_judge_counts_only_points_in_ball_and_box_at_which_the_model_is_wrong() -> None:
    made = task([0.45, 0.45, 0.45, 0.45, 0.6, 0.05])
    good, far, nan, clean, wrong, dark = made.x.clone()
    tip = torch.zeros_like(far)
    tip[0, 0, 0] = 2e-6
    x_adv = torch.stack([good + EPS, far + EPS + tip, nan + torch.nan, clean, wrong, dark - 0.1])
    assert judge(made, x_adv) == (4, 3)  # far, NaN, clean and dark stand; far, NaN and dark are outside
    x_adv[1] = far + EPS + tip / 4
    assert judge(made, x_adv) == (3, 2)
    with pytest.raises(ValueError, match="x_adv must have shape"):
        judge(made, x_adv[:1])


def test_peers_in_a_process_of_their_own_come_to_the_same_verdict() -> None:
    made, case = task([0.05, 0.45, 0.1, 0.47, 0.6]), CASES["pgd"]
    with worker_process(PeerAttacks, made) as theirs:
        there = theirs(case, "plain loop", 0)
    assert there[1] == PeerAttacks(made)(case, "plain loop", 0)[1] == (2, 0)


def test_warm_ups_are_short_seeds_change_and_the_model_is_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = task([0.1, 0.6])
    made.model.train().requires_grad_(True)
    seen: list[tuple[int, int]] = []

    def peer(job: AttackTask, attack: Attack) -> Tensor:
        assert not job.model.training
        assert not any(p.requires_grad for p in job.model.parameters())
        seen.append((attack.steps, job.seed))
        job.model.train()
        return job.x

    monkeypatch.setitem(LIBRARIES, "plain loop", peer)
    monkeypatch.setitem(PEERS, "pgd", {"plain loop": ""})
    group = contestants(made, CASES["pgd"], PeerAttacks(made))
    interleave({"pgd": group}, 3, warm_up=1)
    assert seen == [(1, 0), (40, 0), (40, 1), (40, 2)]
    assert {c.name: [v and v[0] for v in c.results] for c in group} == {
        **{OURS: [1, 1, 1], f"{OURS}, bfloat16": [1, 1, 1], BARE: [None] * 3, "plain loop": [1, 1, 1]},
    }
    assert made.model.training
    assert all(p.requires_grad for p in made.model.parameters())


def test_a_library_that_is_not_installed_is_named_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(attack_peers, "version", absent)
    assert set(attack_peers.versions().values()) == {None}
    group = contestants(task([0.1]), CASES["pgd"], PeerAttacks(task([0.1])))
    assert {c.name for c in group if c.error == NOT_INSTALLED} == {
        "torchattacks",
        "foolbox",
        "ART",
        "adv-lib",
    }


def test_nothing_is_left_of_the_stand_ins_for_unused_imports() -> None:
    pytest.importorskip("adv_lib")
    before = {name for name in UNUSED if name in sys.modules}
    assert callable(attack_peers._adv_lib_attacks().pgd_linf)
    assert {name for name in UNUSED if name in sys.modules} == before


def command(tmp_path: Path, *more: str) -> list[str]:
    path = tmp_path / "mine.safetensors"
    save_file(models.build("cnn-small").state_dict(), path)
    small = ["--n", "6", "--batch", "4", "--budget", "0.003", "--attack", "pgd", "--attack", "apgd"]
    about = ["--weights", str(path), "--model", "cnn-small", "--data", "mnist-mini", "--eps", "0.3"]
    return ["attack", *about, *small, *more]


def plant(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """A peer that does one step in the warm-up and raises after it."""

    def run(job: AttackTask, attack: Attack) -> Tensor:
        if attack.steps > 1:
            raise error
        return job.x

    monkeypatch.setitem(LIBRARIES, "plain loop", run)
    monkeypatch.setitem(PEERS, "pgd", {"plain loop": ""})
    # Another process would not know of it.
    monkeypatch.setattr(attack, "worker_process", lambda make, job: nullcontext(make(job)))


def test_the_command_measures_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch, ValueError("this peer does not work " * 9))
    data = tmp_path / "new" / "times.json"
    main(command(tmp_path, "--repeats", "2", "--json", str(data)))
    report, out = json.loads(data.read_text()), capsys.readouterr().out
    assert (report["batch"], report["repeats"], report["budget"]) == (4, 2, 0.003)
    assert set(report["peers"]) == set(PACKAGES.values())
    (model,) = report["models"]
    assert (model["model"], model["data"], model["n"], model["eps"]) == ("mine", "mnist-mini", 6, 0.3)
    pgd, apgd = model["attacks"]
    assert (pgd["attack"], pgd["settings"]) == ("PGD-1000", "steps 3, relative step 0.22")
    assert (apgd["attack"], apgd["settings"]) == ("APGD-CE", "steps 1")
    assert [len(c["seconds"]) for c in pgd["contestants"]] == [2, 2, 2, 0]
    assert [len(c["robust"]) for c in pgd["contestants"]] == [2, 2, 0, 0]
    assert pgd["contestants"][3]["error"].startswith("ValueError: this peer")
    assert "failed: ValueError" in out
    assert max(map(len, out.splitlines())) <= 80
    robust = np.mean(pgd["contestants"][0]["robust"])
    assert f"| {robust:.1f} |" in markdown(blocks(report))


def test_an_interrupted_measurement_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, KeyboardInterrupt())
    data = tmp_path / "times.json"
    with pytest.raises(KeyboardInterrupt):
        main(command(tmp_path, "--json", str(data), "--repeats", "9"))
    (model,) = json.loads(data.read_text())["models"]
    assert any(c["seconds"] for each in model["attacks"] for c in each["contestants"])


@pytest.mark.parametrize(
    ("missing", "said"),
    [("--eps", "--eps is missing"), ("--data", "--data is missing"), ("--weights", "--weights")],
)
def test_what_a_file_does_not_say_is_required(
    missing: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(tmp_path)
    at = words.index(missing)
    with pytest.raises(SystemExit) as ended:
        main([*words[:at], *words[at + 2 :]])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
