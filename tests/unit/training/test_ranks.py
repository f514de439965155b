"""Processes that train together: what they see, compute and decide is what one process would."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import atlas
from atlas import data, models
from atlas.attacks import PGD, Model
from atlas.data import Batch, Images
from atlas.errors import Interrupted, UsageError
from atlas.methods import METHODS, Adv, Method, Natural, Terms, TrainingStep
from atlas.objectives import logits_and_squared_jacobian
from atlas.rng import Rng
from atlas.signals import caught_signals
from atlas.training import Optimizer, ProcessGroup, Schedule, Training, Validation, fit
from atlas.training.trainer import Trainer
from tests.faults import ranks as real

THREAT = atlas.Linf(0.1)
FLAT = Schedule(kind="constant", epochs=3, ramp_epochs=0)
ACCURACIES = ("val_clean", "val_robust")
TRAINING = Training(batch_size=13, schedule=FLAT, optimizer=Optimizer(weight_decay=0.1))


def images(n: int = 13, dtype: torch.dtype = torch.float32) -> Images:
    """Two classes by which half of the image is brighter."""
    rng = Rng.lanes(0, torch.arange(n))
    y = rng.fold("y").bits(()).remainder(2)
    x = rng.fold("x").uniform((1, 6, 6), 0, 0.6, dtype)
    x[y == 0, :, :3] += 0.3
    x[y == 1, :, 3:] += 0.3
    return Images(x.float(), y, 2)


# --- shares ---


@pytest.mark.parametrize("size", range(2, 9))
def test_shares_make_up_the_batch_in_its_order(size: int) -> None:
    for count in range(1, 40):
        shares = [ProcessGroup(rank, size).share(count) for rank in range(size)]
        busy = [share for share in shares if share.weight]
        assert [i for share in busy for i in range(count)[share.part]] == list(range(count))
        lengths = [len(range(count)[share.part]) for share in shares]
        assert [share.weight for share in busy] == [n / count for n in lengths[: len(busy)]]
        assert min(lengths) >= min(2, count), "BatchNorm refuses a batch of one"
        assert max(lengths) - min(lengths) <= 1


def test_batches_too_small_to_share_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="start fewer"):
        fit(
            plain(),
            images(64),
            Adv(),
            threat=THREAT,
            training=TRAINING,
            folder=tmp_path / "run",
            group=ProcessGroup(0, 7),
        )
    assert not list(tmp_path.iterdir())


# --- what real processes do ---


def write_all(ranks: ProcessGroup, folder: Path) -> None:
    """All that the tests look at, in one start."""
    write_steps(ranks, folder)
    write_seen(ranks, folder)
    write_agreements(ranks, folder)
    if ranks.size == 2:
        write_run(ranks, folder)


@pytest.fixture(scope="module", params=[2, 4])
def team(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """The number of processes, and the folder with what they wrote."""
    folder = tmp_path_factory.mktemp(f"team-{request.param}")
    real.run(request.param, write_all, folder)
    return request.param, folder


# --- gradients ---


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return make()

    return build


@seeded
def plain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(64, 2))


@seeded
def normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Softplus(), nn.Flatten(), nn.Linear(64, 2))


class Branching(nn.Module):
    """Has a layer that only some shares use: of its weights only some ranks have a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.branch = plain(), nn.Linear(2, 2)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.trunk(x)
        return logits + self.branch(logits) if len(x) % 2 == 0 else logits


class JacobianAlone(Method):
    """A loss that leaves the last bias without a gradient."""

    attack = None

    def terms(self, model: Model, x: Tensor, x_adv: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        logits, jac = logits_and_squared_jacobian(model, x, step.rng)
        return Terms({"ce": jac}, logits)


VALUES: dict[str, dict[str, Any]] = {
    "atlas": {"alpha": 0.1, "beta": 0.5},
    "atlas_l": {"alpha": 0.1},
    "atlas_g": {"beta": 0.5},
}
CASES: dict[str, tuple[Method, Callable[[], nn.Module]]] = {
    **{f"{name} plain": (make(**VALUES.get(name, {})), plain) for name, make in METHODS.items()},
    **{f"{name} normed": (make(**VALUES.get(name, {})), normed) for name, make in METHODS.items()},
    "jacobian alone": (JacobianAlone(), plain),
    "branching": (Natural(), seeded(Branching)),
}


def trainer(model: nn.Module, method: Method, ranks: ProcessGroup, training: Training = TRAINING) -> Trainer:
    return Trainer(model, images(), images(9), method, THREAT, training, group=ranks)


def batch() -> Batch:
    every = images()
    return Batch(every.ids, every.x.double(), every.y)


def tensors_after_a_step(model: nn.Module, method: Method, ranks: ProcessGroup) -> dict[str, Tensor]:
    it = trainer(model.double(), method, ranks)
    it.step(batch())
    gradients = {f"gradient {k}": p.grad for k, p in model.named_parameters() if p.grad is not None}
    numbers = {k: torch.tensor(v, dtype=torch.float64) for k, v in it.progress.means().items()}
    return gradients | dict(model.state_dict()) | numbers | {"jacobian": torch.tensor(it.progress.jacobian)}


def write_steps(ranks: ProcessGroup, folder: Path) -> None:
    for name, (method, make) in CASES.items():
        save_file(tensors_after_a_step(make(), method, ranks), folder / f"{name} {ranks.rank}")


def expected(method: Method, make: Callable[[], nn.Module], size: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model with the gradients, and its buffers, by plain passes: the mean over shards one by one."""
    whole, (ids, x, y) = make().double(), batch()
    buffers: dict[str, Tensor] = {}
    for rank in range(size):
        part, weight = ProcessGroup(rank, size).share(len(y))
        model = make().double()
        step = TrainingStep(THREAT, Rng.lanes(0, ids[part]).fold("train", 0))
        x_adv = method.craft(model, x[part], y[part], step.fold("attack"))
        model.train()
        terms = method.terms(model, x[part], x_adv, y[part], step.fold("terms"))
        method.weigh(terms.losses).backward()
        for p, q in zip(whole.parameters(), model.parameters(), strict=True):
            if q.grad is not None:
                p.grad = (0 if p.grad is None else p.grad) + weight * q.grad
        for k, b in model.named_buffers():
            buffers[k] = buffers.get(k, 0) + weight * b.double()
    return whole, buffers


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_statistics_are_the_means_over_the_shares(name: str, team: tuple[int, Path]) -> None:
    size, folder = team
    method, make = CASES[name]
    got = load_file(folder / f"{name} 0")
    wanted, buffers = expected(method, make, size)
    for k, p in wanted.named_parameters():
        if p.grad is None:
            assert f"gradient {k}" not in got, "weight decay would move it"
        else:
            torch.testing.assert_close(got[f"gradient {k}"], p.grad, rtol=1e-12, atol=1e-12)
    for k, b in buffers.items():
        torch.testing.assert_close(got[k].double(), b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name, (_, make) in CASES.items() if make is plain])
def test_a_step_is_that_of_one_process(name: str, team: tuple[int, Path]) -> None:
    method, make = CASES[name]
    got = load_file(team[1] / f"{name} 0")
    alone = tensors_after_a_step(make(), method, ProcessGroup())
    assert set(got) == set(alone)
    for k, tensor in alone.items():
        log = k in ("loss", "gradient", "ce", "jac", "kl", "train_adv", "train_clean", "jacobian")
        tolerance = 1e-6 if log else 1e-12  # the log is in float32
        torch.testing.assert_close(got[k], tensor, rtol=tolerance, atol=tolerance)


def test_all_ranks_hold_the_same_bits(team: tuple[int, Path]) -> None:
    size, folder = team
    for name in CASES:
        first, *others = [load_file(folder / f"{name} {rank}") for rank in range(size)]
        for other in others:
            assert set(first) == set(other)
            assert all(torch.equal(first[k], other[k]) for k in first), name


# --- what is seen, over an epoch whose last batch leaves ranks without images ---


class Spy(Adv):
    """Notes what each rank is given."""

    seen: list[dict[str, Tensor]]

    def craft(self, model: Model, x: Tensor, y: Tensor, step: TrainingStep, mode: object = "") -> Tensor:
        self.seen.append({"x": x, "y": y, "key": step.rng.key})
        return x

    def terms(self, model: Model, x: Tensor, x_adv: Tensor, y: Tensor, step: TrainingStep) -> Terms:
        self.seen[-1]["terms"] = step.rng.key
        return super().terms(model, x, x_adv, y, step)


def seen_in_an_epoch(ranks: ProcessGroup) -> list[dict[str, Tensor]]:
    method = Spy()
    object.__setattr__(method, "seen", [])
    training = Training(batch_size=10, augment="pad-crop-flip", schedule=FLAT)
    trainer(plain(), method, ranks, training).train_epoch(lambda record: None)
    return method.seen


def write_seen(ranks: ProcessGroup, folder: Path) -> None:
    for number, seen in enumerate(seen_in_an_epoch(ranks)):
        save_file(seen, folder / f"{number} {ranks.rank}")


def write_agreements(ranks: ProcessGroup, folder: Path) -> None:
    torch.manual_seed(0)
    constant = nn.BatchNorm2d(64)
    constant.running_mean = torch.rand(64)
    before = constant.running_mean.clone()
    for _ in range(100):
        ranks.mean_buffers(constant, ranks.share(13).weight)
    different = torch.full((2,), float(ranks.rank))
    state = ranks.from_first(({"a": different}, {"rank": ranks.rank}) if ranks.first else None)
    assert state is not None
    accuracies = trainer(plain(), Adv(), ranks).validate()
    drawn = []
    for step in (5, 6, 5):
        ranks.reseed(0, step)
        drawn.append(torch.rand(4))
    save_file(
        {
            "kept": (constant.running_mean == before).all(),
            "accuracies": torch.tensor(
                [accuracies["val_clean"], accuracies["val_robust"]], dtype=torch.float64
            ),
            "from first": state[0]["a"],
            "rank": torch.tensor(state[1]["rank"]),
            "drawn": torch.stack(drawn),
            "nothing": torch.tensor(ranks.from_first(None) is None),
            "signal": torch.tensor(ranks.agree(15 if ranks.rank == 1 else None)),
            "no signal": torch.tensor(ranks.agree(None) is None),
        },
        folder / f"agreed {ranks.rank}",
    )


def test_images_their_order_and_their_random_numbers_are_those_of_one_process(team: tuple[int, Path]) -> None:
    size, folder = team
    alone = seen_in_an_epoch(ProcessGroup())
    assert [len(seen["y"]) for seen in alone] == [10, 3]
    for number, whole in enumerate(alone):
        busy = [rank for rank in range(size) if ProcessGroup(rank, size).share(len(whole["y"])).weight]
        parts = [load_file(folder / f"{number} {rank}") for rank in busy]
        for k, tensor in whole.items():
            assert torch.equal(torch.cat([part[k] for part in parts]), tensor), (number, k)


def test_ranks_agree(team: tuple[int, Path]) -> None:
    size, folder = team
    found = [load_file(folder / f"agreed {rank}") for rank in range(size)]
    accuracies = trainer(plain(), Adv(), ProcessGroup()).validate()
    for mine in found:
        assert mine["kept"], "a constant must not drift by rounding"
        assert mine["accuracies"].tolist() == [accuracies[k] for k in ACCURACIES]
        assert mine["from first"].tolist() == [0, 0]
        assert mine["rank"] == 0
        assert mine["nothing"]
        assert mine["signal"] == 15
        assert mine["no signal"]


def test_dropout_draws_by_rank_and_step(team: tuple[int, Path]) -> None:
    size, folder = team
    drawn = [load_file(folder / f"agreed {rank}")["drawn"] for rank in range(size)]
    for mine in drawn:
        assert torch.equal(mine[0], mine[2])
        assert not torch.equal(mine[0], mine[1])
    assert len({tuple(mine[0].tolist()) for mine in drawn}) == size


class Late(ProcessGroup):
    """A signal comes in while the ranks agree that there is none."""

    def agree(self, signal: int | None) -> int | None:
        os.kill(os.getpid(), 15)
        return signal


def test_a_signal_that_comes_while_ranks_agree_is_not_lost() -> None:
    with caught_signals() as requests:
        it = trainer(plain(), Adv(), Late())
        it.requests = requests
        it.check_requests(requests.caught)
        assert requests.caught == 15
        with pytest.raises(Interrupted):
            requests.check()


# --- whole runs ---

MINI = Training(
    batch_size=64,
    optimizer=Optimizer(lr=0.05),
    schedule=Schedule(kind="guided", epochs=3, ramp_epochs=1),
    validation=Validation(size=200, attack=PGD(steps=3)),
)


def mini() -> Images:
    return data.load("mnist-mini").subset(range(1200))


def mini_run(ranks: ProcessGroup, seed: int = 0) -> atlas.training.Result:
    training = Training(**{**vars(MINI), "seed": seed})
    model = models.build("cnn-small", seed=seed + ranks.rank)  # the first rank's counts
    return fit(model, mini(), Adv(), threat=atlas.Linf(0.1), training=training, progress=False, group=ranks)


def write_run(ranks: ProcessGroup, folder: Path) -> None:
    result = mini_run(ranks)
    numbers = [[r["loss"], r["val_clean"], r["val_robust"], r["jacobian"]] for r in result.epochs]
    save_file({**result.model.state_dict(), "numbers": torch.tensor(numbers)}, folder / f"run {ranks.rank}")


@pytest.mark.parametrize("team", [2], indirect=True)
def test_three_epochs_end_within_seed_noise_of_one_process(team: tuple[int, Path]) -> None:
    first, second = (load_file(team[1] / f"run {rank}") for rank in range(2))
    assert all(torch.equal(first[k], second[k]) for k in first)
    alone = [mini_run(ProcessGroup(), seed).epochs for seed in range(3)]
    loss, clean, robust, jacobian = first["numbers"].T.tolist()
    assert loss[0] == pytest.approx(alone[0][0]["loss"], rel=1e-3), "the same run but for rounding"
    assert jacobian == pytest.approx([r["jacobian"] for r in alone[0]], rel=0.05)
    for name, mine in {"loss": loss, "val_clean": clean, "val_robust": robust}.items():
        last = [epochs[-1][name] for epochs in alone]
        assert abs(mine[-1] - last[0]) <= max(last) - min(last), (name, mine[-1], last)
