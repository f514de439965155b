"""Which passes of a step are made in bfloat16, and the order of weights in memory."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import atlas
from atlas import models
from atlas.checkpoint import load_tensors
from atlas.config import table_of
from atlas.distributed.process_group import ProcessGroup
from atlas.errors import ModelError
from atlas.methods import Adv, Atlas, Jac, Method, Trades
from atlas.objectives import logits_and_squared_jacobian
from atlas.rng import Rng
from atlas.training import Optimizer, Schedule, Training, Validation, fit, precision
from atlas.training.precision import Precision, fastest, in_bfloat16, lowered, puts_channels_last
from atlas.training.settings import REGISTRIES
from atlas.training.state import TrainState

THREAT = atlas.Linf(0.1)
SHORT = Training(
    batch_size=32,
    optimizer=Optimizer(lr=0.05),
    schedule=Schedule(kind="constant", epochs=2, ramp_epochs=1),
    validation=Validation(size=32, attack=atlas.attacks.PGD(steps=2)),
)
F32, BF16 = torch.float32, torch.bfloat16


def task(n: int = 128) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, 8, 8, generator=generator) * 0.5
    y = torch.randint(2, (n,), generator=generator)
    x[y == 0, :, :4] += 0.5
    x[y == 1, :, 4:] += 0.5
    return x, y


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(2, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 2)
        )


def run(method: Method = Adv(), model: nn.Module | None = None, **changes: object) -> atlas.training.Result:
    training = replace(SHORT, **changes)  # type: ignore[arg-type]
    return fit(model or network(), task(), method, threat=THREAT, training=training, progress=False)


@pytest.mark.parametrize(
    ("method", "arithmetic", "crafting", "terms"),
    [
        (Adv(), "float32", {F32}, [F32]),
        (Adv(), "craft", {BF16}, [F32]),
        (Adv(), "bfloat16", {BF16}, [BF16]),
        (Trades(beta=1.0), "bfloat16", {BF16}, [BF16, BF16]),
        # The pass that the Jacobian is taken of, and its cross-entropy with it, stays in float32.
        (Atlas(alpha=0.1, beta=1.0), "craft", {BF16}, [F32, F32]),
        (Atlas(alpha=0.1, beta=1.0), "bfloat16", {BF16}, [F32, BF16]),
        (Atlas(alpha=0.1, beta=1.0), "bfloat16-all", {BF16}, [BF16, BF16]),
        (Adv(), "bfloat16-all", {BF16}, [BF16]),
    ],
)
def test_the_dtype_of_each_pass(
    method: Method, arithmetic: Precision, crafting: set[torch.dtype], terms: list[torch.dtype]
) -> None:
    model, seen = network(), list[tuple[bool, torch.dtype]]()
    model[-1].register_forward_hook(lambda layer, x, logits: seen.append((layer.training, logits.dtype)))
    run(method, model, precision=arithmetic, schedule=replace(SHORT.schedule, epochs=1, ramp_epochs=0))
    steps = [kind for training, kind in seen if training]
    assert steps == terms * (len(steps) // len(terms))
    assert steps
    # Passes in eval mode: besides adversaries the verdicts of validation and the probe, always in float32.
    assert {kind for training, kind in seen if not training} == crafting | {F32}
    assert all(p.dtype == F32 for p in model.parameters())


@pytest.mark.parametrize(
    ("arithmetic", "attack", "search"),
    [
        ("float32", atlas.attacks.PGD(steps=3), F32),
        ("craft", atlas.attacks.PGD(steps=3), BF16),
        ("bfloat16-all", atlas.attacks.PGD(steps=3), BF16),
        ("bfloat16-all", atlas.attacks.Square(queries=3), F32),
    ],
)
def test_validation_searches_as_training_does_and_is_checked_in_float32(
    arithmetic: Precision, attack: atlas.attacks.Attack, search: torch.dtype
) -> None:
    """JAC makes no adversaries: those of validation are the only ones."""
    model, seen = network(), list[torch.dtype]()
    model[-1].register_forward_hook(
        lambda layer, x, logits: None if layer.training else seen.append(logits.dtype)
    )
    validation = replace(SHORT.validation, attack=attack)
    run(Jac(alpha=0.1), model, precision=arithmetic, validation=validation)
    assert set(seen) == {search, F32}


@pytest.mark.parametrize("arithmetic", ["craft", "bfloat16", "bfloat16-all"])
@pytest.mark.parametrize("method", [Adv(), Trades(beta=1.0), Atlas(alpha=0.1, beta=1.0)])
def test_the_losses_are_those_of_float32_up_to_rounding(method: Method, arithmetic: str) -> None:
    exact, rounded = run(method).epochs, run(method, precision=arithmetic).epochs
    assert rounded[0]["loss"] == pytest.approx(exact[0]["loss"], rel=0.02)
    assert rounded[0]["loss"] != exact[0]["loss"]


def test_without_a_jacobian_there_is_no_more_to_round() -> None:
    one, other = run(precision="bfloat16"), run(precision="bfloat16-all")
    assert one.epochs == other.epochs
    assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))


@pytest.mark.parametrize("name", ["cnn-small", "wrn-10-1"])
def test_a_rounded_jacobian_pulls_the_weights_the_same_way(name: str) -> None:
    """Their gradient turns far less by rounding than by another batch."""
    torch.manual_seed(0)
    model = atlas.models.build(name, 10, (3, 32, 32))
    weights = [p for p in model.parameters() if p.requires_grad]
    x = torch.rand(2, 32, 3, 32, 32)

    def pull(arithmetic: Precision, x: Tensor) -> Tensor:
        device = torch.device("cpu")
        with lowered(arithmetic, "terms", device):
            answer = in_bfloat16(model, device) if arithmetic == "bfloat16-all" else model
            _, jacobian = logits_and_squared_jacobian(answer, x, Rng.lanes(0, torch.arange(len(x))))
        gradients = torch.autograd.grad(jacobian.mean(), weights, materialize_grads=True)
        return torch.cat([gradient.flatten() for gradient in gradients])

    exact, rounded, other = pull("float32", x[0]), pull("bfloat16-all", x[0]), pull("float32", x[1])
    assert not torch.equal(exact, rounded)
    assert torch.equal(exact, pull("bfloat16", x[0]))
    turned = 1 - torch.cosine_similarity(exact, rounded, 0)
    assert turned < 0.03
    assert turned < (1 - torch.cosine_similarity(exact, other, 0)) / 5


def test_a_divergence_of_rounded_answers_is_itself_not_rounded() -> None:
    p, q = torch.randn(50, 10).to(BF16), torch.randn(50, 10).to(BF16)
    assert atlas.objectives.kl(p, q).dtype == F32
    torch.testing.assert_close(
        atlas.objectives.kl(p, q).double(), atlas.objectives.kl(p.double(), q.double()), rtol=1e-5, atol=1e-6
    )


def test_channels_last_is_the_same_training_in_another_order_of_memory() -> None:
    one, other = run(), run(channels_last=True)
    assert other.model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not other.model[0].weight.is_contiguous()
    for a, b in zip(one.epochs, other.epochs, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("name", "method", "last"),
    [
        ("cnn-small", Adv(), True),
        ("cnn-small", Atlas(0.01, 1.0), True),
        ("wrn-10-1", Adv(), True),
        ("wrn-10-1", Atlas(alpha=0.0, beta=1.0), True),
        ("wrn-10-1", Atlas(0.01, 1.0), False),
        ("wrn-10-1", Jac(0.01), False),
    ],
)
def test_auto_leaves_the_second_derivative_of_batchnorm_in_the_order_in_which_it_is_fast(
    name: str, method: Method, last: bool
) -> None:
    model = models.build(name, shape=(3, 8, 8))
    assert puts_channels_last("auto", model, method) is last
    assert puts_channels_last(True, model, method) is True
    state = TrainState(model, method, replace(SHORT, channels_last="auto"), ProcessGroup())
    assert state.channels_last is last


def test_channels_last_is_in_the_file_as_ever_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    training = replace(SHORT, channels_last=True, precision="craft")

    def train(name: str, epochs: int) -> None:
        longer = replace(training, schedule=replace(SHORT.schedule, epochs=epochs))
        fit(
            network(),
            task(),
            Atlas(0.1, 1.0),
            threat=THREAT,
            training=longer,
            folder=tmp_path / name,
            allow_changes=True,
            progress=False,
        )

    train("whole", 2)
    train("parts", 1)
    train("parts", 2)
    whole, parts = (load_tensors(tmp_path / name / "last.safetensors")[0] for name in ("whole", "parts"))
    assert all(torch.equal(whole[k], parts[k]) for k in whole)
    model = network()
    model.load_state_dict(whole)
    assert model[0].weight.is_contiguous()


def test_runs_of_before_are_known_by_their_tables() -> None:
    assert "precision" not in table_of(SHORT, REGISTRIES)
    table = table_of(replace(SHORT, precision="craft"), REGISTRIES)
    assert table["precision"] == "craft"
    assert "channels_last" not in table


@pytest.mark.parametrize("known", [True, False])
def test_the_fastest_settings_are_settings(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "knows_bfloat16", lambda: known)
    training = replace(SHORT, **fastest(torch.device("cpu")))
    assert (training.precision != "float32") == known
    assert fastest(torch.device("cuda")) == {}, "not measured there"


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="Linux tells what a processor knows")
def test_what_the_processor_knows() -> None:
    assert precision.knows_bfloat16() == ("avx512_bf16" in Path("/proc/cpuinfo").read_text().split())


def test_arithmetic_that_the_caller_has_chosen_stays() -> None:
    with torch.autocast("cpu", BF16), lowered("float32", "terms", torch.device("cpu")):
        assert torch.is_autocast_enabled("cpu")


class Places(nn.Module):
    """Writes to places of a tensor by an operation for which torch has no deterministic algorithm."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen = network(), set[bool]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add(torch.are_deterministic_algorithms_enabled())
        logits: Tensor = self.net(x)
        index = torch.arange(logits.numel(), device=x.device)
        return torch.zeros_like(logits).put(index, logits) if torch.is_grad_enabled() else logits


def test_only_deterministic_algorithms_are_used_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    plain = Places()
    run(model=plain)
    assert plain.seen == {False}
    strict = Places()
    with pytest.raises(ModelError, match=r"put.* does not have a deterministic implementation"):
        run(model=strict, deterministic=True)
    assert strict.seen == {True}
    assert not torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    method = Atlas(alpha=1e-3, beta=0.5)
    assert run(method).epochs == run(method, deterministic=True).epochs, "on a CPU all are"
