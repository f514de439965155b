"""Training steps beside those of others: equals are compared, and nobody stops the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from atlas import bench, models
from atlas.attacks import FGSM, PGD
from atlas.bench import peers, trainers
from atlas.bench.attack import NOT_INSTALLED, OURS
from atlas.bench.trainers import TRAINERS, Task, textbook
from atlas.cli.bench import app
from atlas.errors import UsageError
from atlas.methods import Adv, Atlas, Jac, Method, Trades
from atlas.rng import Rng
from atlas.threat import Linf

EPS, SHAPE, SIZE = 0.1, (1, 8, 8), 6
EVERYBODY = [
    (f"{name}-{steps}" if steps else name, trainer.name)
    for name, theirs in TRAINERS.items()
    for trainer in theirs
    for steps in ((0,) if name in ("natural", "jac") else (1, 3))
]


def network() -> nn.Module:
    """With BatchNorm, whose mode matters, and in float64, where a difference of one operation shows."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Softplus(), nn.Conv2d(4, 4, 3, stride=2)),
            *(nn.Tanh(), nn.Flatten(), nn.Linear(36, 10)),
        ).double()


def task(steps: int = 1) -> Task:
    batch = bench.random_batch(SIZE, SHAPE)
    return Task(network(), batch.x.double(), batch.y, EPS, steps, 10, alpha=0.7, beta=2.0)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


METHODS: list[tuple[Method, textbook.Loss]] = [
    (Adv(), textbook.adv_loss),
    (Trades(2.0), textbook.trades_loss),
    (Jac(0.7), textbook.jac_loss),
    (Atlas(0.7, 2.0), textbook.atlas_loss),
    (Atlas(0.0, 2.0), textbook.atlas_g_loss),
]


@pytest.mark.parametrize(("method", "loss"), METHODS, ids=lambda value: getattr(value, "__name__", None))
def test_the_textbook_has_our_loss_and_gradients_for_the_same_adversaries(
    method: Method, loss: textbook.Loss
) -> None:
    ours, theirs = task(), task()
    rng = Rng.lanes(0, torch.arange(SIZE))
    x_adv = Linf(EPS).random_start(ours.x, rng.fold("anywhere"))
    v = rng.fold("projection", 0).sphere(10, torch.float64)
    mine = method.weigh(method.terms(ours.model, ours.x, x_adv, ours.y, rng).losses)
    other = loss(theirs, ours.x if isinstance(method, Jac) else x_adv, v)
    assert mine.item() == pytest.approx(other.item(), rel=1e-12)
    for a, b in zip(gradients(ours.model, mine), gradients(theirs.model, other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    for a, b in zip(ours.model.buffers(), theirs.model.buffers(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("objective", ["ce", "kl"])
def test_the_textbook_makes_our_adversaries_from_the_same_start(steps: int, objective: str) -> None:
    made = task(steps)
    made.model.eval()
    attack = (FGSM() if steps == 1 else PGD(steps=steps)).toward(objective)
    rng = Rng.lanes(0, torch.arange(SIZE))
    mine = attack.craft(made.model, made.x, made.y, Linf(EPS), rng)
    # The start is the one draw of the attack's stream.
    starts: list[Tensor] = []
    random_start = Linf.random_start

    def kept(self: Linf, *args: object, **rest: object) -> Tensor:
        starts.append(random_start(self, *args, **rest))  # type: ignore[arg-type]
        return starts[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Linf, "random_start", kept)
        attack.craft(made.model, made.x, made.y, Linf(EPS), rng)
    climb = textbook.climb_ce if objective == "ce" else textbook.climb_kl
    torch.testing.assert_close(climb(made, starts[0].clone()), mine, rtol=0, atol=1e-12)
    assert (mine - made.x).abs().max() > EPS / 2


def test_starts_lie_in_ball_and_box_and_directions_on_the_sphere() -> None:
    made = task(3)
    for start in (textbook.uniform_start(made), textbook.trades_start(made)):
        assert Linf(EPS).contains(start, made.x).all()
    assert (textbook.trades_start(made) - made.x).abs().max() < 0.01
    assert (textbook.trades_start(task(1)) - made.x).abs().max() > 0.05
    v = textbook.directions(made)
    assert v.shape == (SIZE, 10)
    torch.testing.assert_close(v.norm(dim=1), torch.ones(SIZE).double())


class Calls:
    """Notes every forward pass of a network: its mode, and whether its weights are differentiated."""

    def __init__(self, model: nn.Module) -> None:
        self.modes: list[bool] = []
        model.register_forward_hook(lambda module, args, out: self.modes.append(module.training))


OTHERWISE = {
    ("adv-1", "ART"): [False] * 2,  # FBF trains in eval mode
    # Its PGD asks the model twice more to see who was fooled; CE needs no clean logits.
    ("adv-3", "ART"): [False] * 5 + [True],
    ("trades-1", "ART"): [False] * 3 + [True] * 2,
    ("trades-3", "ART"): [False] * 5 + [True] * 2,
}


@pytest.mark.parametrize(("label", "who"), EVERYBODY)
def test_everybody_updates_the_weights_with_the_passes_of_the_equation(label: str, who: str) -> None:
    """Forward passes in eval mode while the attack runs, then in training mode; the notes name the rest."""
    model = models.build("cnn-small", shape=SHAPE)
    calls = Calls(model)
    before = [p.clone() for p in model.parameters()]
    steps = bench.Steps(model, bench.random_batch(SIZE, SHAPE))
    if not next(t for t in TRAINERS[bench.case(label).name] if t.name == who).installed:
        pytest.skip(f"{who} is not installed")
    assert steps(label, who) > 0
    inner = steps.model
    assert inner is not model
    assert all(map(torch.equal, before, model.parameters())), "ours is left alone"
    fbf = (label, who) == ("adv-1", "ART")  # its schedule ends at a learning rate of 0
    assert fbf or not all(map(torch.equal, before, inner.parameters()))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in inner.parameters())
    calls = Calls(inner)
    steps(label, who)
    passes = bench.case(label).passes
    assert passes is not None
    updating = passes.backward
    wanted = [False] * (passes.forward - updating) + [True] * updating
    assert calls.modes == OTHERWISE.get((label, who), wanted)


def test_the_notes_say_where_a_library_differs() -> None:
    notes = {side.name: side.note for side in bench.match("adv-1").sides}
    assert "eval mode" in notes["ART"]
    assert "CE" in {side.name: side.note for side in bench.match("trades-10").sides}["ART"]
    assert notes[OURS] == ""


class Clock:
    """Moves only when somebody works: ours and others take known seconds in each repeat."""

    def __init__(self, seconds: dict[str, list[float]], fails: dict[str, int] | None = None) -> None:
        self.now, self.ran = 0.0, list[tuple[str, str]]()
        self.seconds, self.fails = seconds, fails or {}

    def work(self, label: str, who: str) -> float:
        turn = self.ran.count((label, who))
        self.ran.append((label, who))
        if self.fails.get(who) == turn:
            raise ZeroDivisionError("no\n such   luck")
        taken = self.seconds[who][max(0, turn - bench.WARM_UP)]
        self.now += taken
        return taken

    def ours(self, label: str) -> Callable[[], None]:
        return lambda: self.work(label, OURS) and None


def played(clock: Clock, labels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> list[bench.Match]:
    matches = [bench.match(label) for label in labels]
    for found in matches:
        found.sides[:] = [bench.Side(OURS), *(bench.Side(who) for who in clock.seconds if who != OURS)]
    stand_ins = [bench.Pair(m.case, clock.ours(m.case.label), None) for m in matches]
    monkeypatch.setattr("atlas.bench.matches.pairs", lambda *args: stand_ins)
    batch = bench.random_batch(2, (1, 2, 2))
    bench.play(matches, nn.Flatten(), batch, 3, clock.work, clock=lambda: clock.now)
    return matches


def test_each_repeat_runs_everybody_side_by_side_in_a_new_order(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock({OURS: [2.0] * 3, "slow": [3.0] * 3, "fast": [1.0] * 3})
    played(clock, ("adv-1", "jac"), monkeypatch)
    turns = [clock.ran[i : i + 3] for i in range(0, len(clock.ran), 3)]
    assert len(turns) == 2 * (3 + bench.WARM_UP)
    for turn in turns:
        assert len({label for label, _ in turn}) == 1
        assert {who for _, who in turn} == {OURS, "slow", "fast"}
    assert len({tuple(who for _, who in turn) for turn in turns}) > 2


def test_ratios_are_medians_of_the_repeats_own_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is ten times slower in one repeat changes no ratio."""
    clock = Clock({OURS: [2.0, 20.0, 2.0], "slow": [6.0, 60.0, 8.0]})
    (found,) = bench.match_summary(played(clock, ("adv-1",), monkeypatch))
    ours, slow = found["sides"]
    assert (found["method"], ours["seconds"]) == ("adv-1", [2, 20, 2])
    assert slow["over_ours"] == pytest.approx([3, 3, 3.5])
    assert bench.match_rows([slow]) == [("slow", "8000.0", "3.00 [3.00, 3.50]", "")]


def test_one_that_raises_is_named_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock({OURS: [2.0] * 3, "bad": [1.0] * 3, "late": [4.0] * 3}, {"bad": 0, "late": 3})
    (found,) = bench.match_summary(played(clock, ("adv-1",), monkeypatch))
    failed = "failed: ZeroDivisionError: no such luck"
    assert bench.match_rows(found["sides"]) == [
        (OURS, "2000.0", "1.00 [1.00, 1.00]", ""),
        ("bad", "-", "-", failed),
        ("late", "4000.0", "2.00 [2.00, 2.00]", failed),
    ]
    assert clock.ran.count(("adv-1", "bad")) == 1


def test_a_library_that_is_not_there_is_named_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(peers, "version", absent)
    found = bench.match("trades-1")
    assert [side.name for side in found.sides if side.absent] == ["torchattacks", "ART"]
    assert {side.error for side in found.sides} == {None, NOT_INSTALLED}


@pytest.mark.parametrize(("label", "said"), [("atlas_l-1", "nobody else"), ("advv-1", "'adv'")])
def test_a_method_that_nobody_has_is_refused(label: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        CliRunner().invoke(app, ["peers", "--method", label], catch_exceptions=False)


def test_the_command_measures_prints_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(task: Task) -> Callable[[], None]:
        raise ValueError("this peer does not work " * 9)

    @contextmanager
    def here(make: Callable[..., bench.Steps], *settings: object) -> Iterator[bench.Steps]:
        yield make(*settings)

    monkeypatch.setattr(bench, "apart", here)
    monkeypatch.setitem(TRAINERS, "adv", (TRAINERS["adv"][0], trainers.Trainer("broken", broken)))
    page, data = tmp_path / "page.md", tmp_path / "new" / "times.json"
    begin, end = bench.markers("peers", "here")
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    words = ["peers", "--model", "cnn-small", "--shape", "1x8x8", "--batch", "4", "--repeats", "2"]
    words += [
        "--method",
        "adv-1",
        "--method",
        "jac",
        "--json",
        str(data),
        "--markdown",
        str(page),
        "--part",
        "here",
    ]
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    report = json.loads(data.read_text())
    (model,) = report["models"]
    adv, jac = model["methods"]
    assert [(s["who"], len(s["seconds"])) for s in adv["sides"]] == [
        *((OURS, 2), ("textbook loop", 2), ("broken", 0)),
    ]
    assert [s["who"] for s in jac["sides"]] == [OURS, "textbook loop"]
    assert adv["sides"][0]["over_ours"] == [1, 1, 1]
    assert "failed: ValueError: this peer" in result.output
    assert page.read_text() == f"before\n{begin}\n{bench.match_markdown(report)}\n{end}\nafter\n"
    assert max(map(len, result.output.splitlines())) <= 100
    assert set(report["peers"]) == {"torchattacks", "adversarial-robustness-toolbox"}


def test_the_others_work_in_another_process(tmp_path: Path) -> None:
    data = tmp_path / "times.json"
    words = ["peers", "--model", "cnn-small", "--shape", "1x8x8", "--batch", "4", "--repeats", "1"]
    words += ["--method", "jac", "--set", "training.channels_last=true", "--json", str(data)]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    (jac,) = json.loads(data.read_text())["models"][0]["methods"]
    assert [(side["error"], len(side["seconds"])) for side in jac["sides"]] == [(None, 1)] * 3
    assert [(side["who"], side["note"]) for side in jac["sides"]][:2] == [
        *((OURS, "channels_last True"), ("ours, plain", "")),
    ]


def test_a_page_without_markers_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "play", None)
    page = tmp_path / "page.md"
    page.write_text("<!-- begin: atlas bench step -->\n<!-- end: atlas bench step -->\n")
    with pytest.raises(UsageError, match="no place for the table"):
        CliRunner().invoke(app, ["peers", "--markdown", str(page)], catch_exceptions=False)


def test_our_steps_over_one_step_adv_of_the_same_repeat() -> None:
    """By hand: a machine that is ten times slower in the second repeat changes no ratio."""

    def sides(ours: list[float], plain: list[float]) -> list[dict[str, Any]]:
        return [{"who": "ours", "seconds": ours}, {"who": "ours, plain", "seconds": plain}]

    methods = [
        {"method": "adv-1", "sides": sides([1.0, 10.0], [2.0, 20.0])},
        {"method": "atlas-1", "sides": sides([3.0, 30.0], [5.0, 50.0])},
    ]
    assert [[cell.split()[0] for cell in row] for row in bench.own_rows(methods)] == [
        ["adv-1", "1.00", "0.50", "1.00"],
        ["atlas-1", "2.50", "1.50", "3.00"],
    ]
    assert bench.own_rows(methods[1:]) == []
    assert bench.own_rows([{"method": "adv-1", "sides": sides([1.0], [2.0])[:1]}]) == []
