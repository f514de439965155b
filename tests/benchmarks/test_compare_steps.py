"""Training steps beside those of others: all compute what the notes say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import FGSM, PGD
from atlas.methods import Adv, Atlas, Jac, Method, Trades, TrainingStep
from atlas.rng import Rng
from atlas.threat import Linf
from benchmarks import attack_peers, compare_steps
from benchmarks.command import main
from benchmarks.compare_steps import NOTES, TEXTBOOK, TRAINERS, PeerSteps, StepTask, own_rows, peers_of
from benchmarks.equations import EQUATIONS, LossPoints, case
from benchmarks.step import random_batch
from benchmarks.timing import OURS

EPS, SHAPE, SIZE = 0.1, (1, 8, 8), 6
SMALL = ["peers", "--model", "cnn-small", "--shape", "1x8x8", "--batch", "4"]
EVERYBODY = [
    (f"{name}-{steps}" if steps else name, who)
    for name, equation in EQUATIONS.items()
    for who in (TEXTBOOK, *NOTES.get(name, {}))
    for steps in ((1, 3) if equation.objective else (0,))
]


def task(name: str = "adv", steps: int = 1) -> StepTask:
    """A network with BatchNorm, whose mode matters, in float64, where a difference of one operation shows."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Softplus(), nn.Conv2d(4, 4, 3, stride=2)),
            *(nn.Tanh(), nn.Flatten(), nn.Linear(36, 10)),
        ).double()
    batch = random_batch(SIZE, SHAPE)
    return StepTask(network, batch.x.double(), batch.y, EPS, EQUATIONS[name], steps, alpha=0.7, beta=2.0)


METHODS: dict[str, Method] = {
    **{"adv": Adv(), "trades": Trades(2.0), "jac": Jac(0.7), "atlas": Atlas(0.7, 2.0)},
    **{"atlas_g": Atlas(0.0, 2.0), "atlas_l": Atlas(0.7, 0.0)},
}


@pytest.mark.parametrize("name", METHODS)
def test_the_equations_have_our_loss_and_gradients_for_the_same_adversaries(name: str) -> None:
    ours, theirs, method = task(name), task(name), METHODS[name]
    rng = Rng.lanes(0, torch.arange(SIZE))
    x_adv = Linf(EPS).random_start(ours.x, rng.fold("anywhere"))
    v = rng.fold("projection", 0).sphere(10, torch.float64)
    mine = method.weigh(method.terms(ours.model, ours.x, x_adv, ours.y, TrainingStep(Linf(EPS), rng)).losses)
    points = LossPoints(theirs.model, theirs.x, x_adv, theirs.y, v, theirs.alpha, theirs.beta)
    other = theirs.equation.loss(points)
    assert mine.item() == pytest.approx(other.item(), rel=1e-12)
    gradients = [
        torch.autograd.grad(loss, list(t.model.parameters())) for loss, t in ((mine, ours), (other, theirs))
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    for a, b in zip(ours.model.buffers(), theirs.model.buffers(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("objective", ["ce", "kl"])
def test_the_textbook_makes_our_adversaries_from_the_same_start(
    steps: int, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = task("adv" if objective == "ce" else "trades", steps)
    made.model.eval()
    attack = (FGSM() if steps == 1 else PGD(steps=steps)).with_default_objective(objective)
    starts: list[Tensor] = []
    random_start = Linf.random_start

    def kept(self: Linf, *args: Any, **rest: Any) -> Tensor:
        starts.append(random_start(self, *args, **rest).clone())
        return starts[-1].clone()

    monkeypatch.setattr(Linf, "random_start", kept)
    mine = attack.craft(made.model, made.x, made.y, Linf(EPS), Rng.lanes(0, torch.arange(SIZE)))
    torch.testing.assert_close(made.craft(starts[0]), mine, rtol=0, atol=1e-12)
    assert (mine - made.x).abs().max() > EPS / 2


def test_starts_lie_in_ball_and_box_and_trades_starts_close_for_several_steps() -> None:
    for name, steps in (("adv", 3), ("trades", 3), ("trades", 1)):
        made = task(name, steps)
        assert Linf(EPS).contains(made.start(), made.x).all()
        far = float((made.start() - made.x).abs().max())
        assert far < 0.01 if (name, steps) == ("trades", 3) else far > 0.05


OTHERWISE = {
    ("adv-1", "ART"): [False] * 2,  # FBF trains in eval mode
    # Its PGD asks the model twice more to see who was fooled; CE needs no clean logits.
    ("adv-3", "ART"): [False] * 5 + [True],
    ("trades-1", "ART"): [False] * 3 + [True] * 2,
    ("trades-3", "ART"): [False] * 5 + [True] * 2,
}
UPDATING = {"trades": 2, "atlas": 2, "atlas_g": 2, "trades_jac": 2}
"""Forward passes in training mode, where they are not one."""


@pytest.mark.parametrize(("label", "who"), EVERYBODY)
def test_everybody_updates_the_weights_with_the_passes_of_the_equation(label: str, who: str) -> None:
    """Forward passes in eval mode while the attack runs, then in training mode; the notes name the rest."""
    if not attack_peers.installed(who):
        pytest.skip(f"{who} is not installed")
    steps, found = PeerSteps("cnn-small", SIZE, SHAPE, "cpu"), case(label)
    before = [p.clone() for p in steps.model.parameters()]
    assert steps(label, who)[0] > 0
    fbf = (label, who) == ("adv-1", "ART")  # its schedule ends at a learning rate of 0
    assert fbf or not all(map(torch.equal, before, steps.model.parameters()))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in steps.model.parameters())
    modes: list[bool] = []
    steps.model.register_forward_hook(lambda module, args, out: modes.append(module.training))
    steps(label, who)
    assert found.equation is not None
    crafting = found.steps + (found.equation.objective == "kl")
    assert modes == OTHERWISE.get((label, who), [False] * crafting + [True] * UPDATING.get(found.name, 1))
    assert (who == TEXTBOOK) == (peers_of(found)[who] == "as written in a notebook, float32")


def test_the_command_measures_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(task: StepTask) -> Callable[[], None]:
        raise ValueError("this peer does not work " * 9)

    @contextmanager
    def here(make: Callable[..., PeerSteps], *settings: object) -> Iterator[PeerSteps]:
        yield make(*settings)

    monkeypatch.setattr(compare_steps, "worker_process", here)
    monkeypatch.setitem(TRAINERS, "broken", broken)
    monkeypatch.setitem(NOTES, "adv", {"broken": ("", "")})
    data = tmp_path / "times.json"
    main([*SMALL, "--repeats", "2", "--method", "adv-1", "--method", "jac", "--json", str(data)])
    report, out = json.loads(data.read_text()), capsys.readouterr().out
    adv, jac = report["models"][0]["methods"]
    assert [(s["who"], len(s["seconds"])) for s in adv["sides"]] == [(OURS, 2), (TEXTBOOK, 2), ("broken", 0)]
    assert [s["who"] for s in jac["sides"]] == [OURS, TEXTBOOK]
    assert adv["sides"][0]["over_ours"] == [1, 1, 1]
    assert "failed: ValueError" in out
    assert max(map(len, out.splitlines())) <= 80
    assert set(report["peers"]) == {"torchattacks", "adversarial-robustness-toolbox"}


def test_the_others_run_in_another_process(tmp_path: Path) -> None:
    data = tmp_path / "times.json"
    more = ["--method", "jac", "--set", "training.channels_last=true", "--json", str(data)]
    main([*SMALL, "--repeats", "1", *more])
    (jac,) = json.loads(data.read_text())["models"][0]["methods"]
    assert [(side["error"], len(side["seconds"])) for side in jac["sides"]] == [(None, 1)] * 3
    assert [(side["who"], side["note"]) for side in jac["sides"]][:2] == [
        *((OURS, "channels_last True"), ("ours, plain", "")),
    ]


def test_our_steps_over_one_step_adv_of_the_same_repeat() -> None:
    """By hand: a machine that is ten times slower in the second repeat changes no ratio."""

    def sides(ours: list[float], plain: list[float]) -> list[dict[str, Any]]:
        return [{"who": "ours", "seconds": ours}, {"who": "ours, plain", "seconds": plain}]

    methods = [
        {"method": "adv-1", "sides": sides([1.0, 10.0], [2.0, 20.0])},
        {"method": "atlas-1", "sides": sides([3.0, 30.0], [5.0, 50.0])},
        {"method": "jac", "sides": sides([3.0], [5.0, 50.0])},  # ours failed on the way
    ]
    assert [[cell.split()[0] for cell in row] for row in own_rows(methods)] == [
        ["adv-1", "1.00", "0.50", "1.00"],
        ["atlas-1", "2.50", "1.50", "3.00"],
    ]
    assert own_rows(methods[1:]) == []
    assert own_rows([{"method": "adv-1", "sides": sides([1.0], [2.0])[:1]}]) == []
