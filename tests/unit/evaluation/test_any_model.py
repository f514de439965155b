"""Models of any kind come back from an evaluation as they were, also when they fail in the middle of it."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atlas
from atlas.attacks import PGD, Square
from atlas.errors import CheckpointError, ModelError, OutOfMemoryError, UsageError
from atlas.evaluation import Shard, run_attack
from atlas.evaluation.evaluation_folder import load_report

X, Y = torch.rand(12, 1, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
ATTACKS = {"PGD": PGD(steps=4), "Square": Square(queries=5)}


class Net(nn.Sequential):
    """BatchNorm and dropout in training mode, a part that is frozen for good, hooks, and gradients."""

    def __init__(self, fails_at: int = 0) -> None:
        torch.manual_seed(1)
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 3)
        )
        self.fails_at, self.passes, self.heard = fails_at, 0, 0
        self[0].requires_grad_(False)
        self.train()
        super().forward(X).sum().backward()
        self[4].register_forward_hook(self.hear)
        self[4].register_full_backward_hook(self.hear)
        self[0].register_forward_pre_hook(self.hear)

    def hear(self, *_: object) -> None:
        self.heard += 1

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.passes == self.fails_at:
            raise KeyError("the model's own")
        return super().forward(x)


def as_it_is(net: Net) -> dict[str, Any]:
    return {
        "modes": [module.training for module in net.modules()],
        "kinds": [type(module) for module in net.modules()],
        "requires_grad": [p.requires_grad for p in net.parameters()],
        "grads": [None if p.grad is None else p.grad.tolist() for p in net.parameters()],
        "values": {k: v.tolist() for k, v in net.state_dict().items()},
        "hooks": [
            dict(hooks)
            for module in net.modules()
            for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        ],
        "random": torch.get_rng_state().tolist(),
        "signals": signal.getsignal(signal.SIGTERM),
    }


def evaluated(net: Net, folder: Path | None = None) -> atlas.evaluation.Report:
    return atlas.evaluate(net, (X, Y), atlas.Linf(0.1), attacks=ATTACKS, folder=folder, progress=False)


def test_it_comes_back_as_it_was_and_was_heard() -> None:
    net = Net()
    before = as_it_is(net)
    report = evaluated(net)
    assert report.valid, "dropout is off, or it would be called random"
    assert as_it_is(net) == before
    assert net.heard > net.passes, "its hooks were called all along"


@pytest.mark.parametrize("fails_at", [1, 2, 6, 15])
def test_it_comes_back_as_it_was_after_it_failed(fails_at: int, tmp_path: Path) -> None:
    net = Net(fails_at)
    before = as_it_is(net)
    with pytest.raises((ModelError, UsageError), match="the model's own") as caught:
        evaluated(net, tmp_path)
    assert isinstance(caught.value.__cause__, KeyError)
    assert as_it_is(net) == before
    assert (tmp_path / "lock").read_bytes() == b""
    whole = evaluated(Net()).summary()
    assert evaluated(net, tmp_path).summary() == whole, "and the same evaluation continues"


def test_an_attack_leaves_it_as_it_was_after_it_failed() -> None:
    net = Net(fails_at=3)
    before = as_it_is(net)
    with pytest.raises(KeyError, match="the model's own"):
        PGD(steps=5)(net, X, Y, atlas.Linf(0.1), atlas.Rng.batch(len(X)))
    assert as_it_is(net) == before


def test_a_function_is_as_good() -> None:
    net = Net().eval()
    of_module = evaluated(net)
    of_function = atlas.evaluate(lambda x: net(x), (X, Y), atlas.Linf(0.1), attacks=ATTACKS, progress=False)
    assert of_function.robust.tolist() == of_module.robust.tolist()


def test_a_normalisation_goes_before_a_module_and_a_function() -> None:
    net, layer = Net().eval(), atlas.models.Normalize([0.5], [0.5])
    by_hand = evaluated(nn.Sequential(layer, net))  # type: ignore[arg-type]
    given: list[tuple[Any, Any]] = [(net, "-1..1"), (net, ([0.5], [0.5])), (lambda x: net(x), "-1..1")]
    for model, normalize in given:
        report = atlas.evaluate(
            model, (X, Y), atlas.Linf(0.1), attacks=ATTACKS, normalize=normalize, progress=False
        )
        assert report.robust.tolist() == by_hand.robust.tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_model_in_another_precision_gets_images_in_it(dtype: torch.dtype) -> None:
    net = Net().eval().to(dtype)
    report, given = evaluated(net), X.to(dtype)
    assert next(net.parameters()).dtype == dtype
    assert report.clean_right.tolist() == (net(given).argmax(1) == Y).tolist()
    by_hand = atlas.evaluate(
        lambda x: net(x.to(dtype)).float(), (X, Y), atlas.Linf(0.1), attacks=ATTACKS, progress=False
    )
    assert report.robust.tolist() == by_hand.robust.tolist()
    searched = atlas.evaluate(
        net, (X, Y), atlas.Linf(0.1), attacks=ATTACKS, attack_dtype="bfloat16", progress=False
    )
    assert searched.clean_right.tolist() == report.clean_right.tolist()
    with pytest.raises(UsageError, match=f"its weights are {dtype}, so give lambda x: model"):
        PGD(steps=2)(net, X, Y, atlas.Linf(0.1))


def test_a_model_without_values_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="on the device meta, which holds no values"):
        evaluated(Net().to("meta"))
    torn = Net()
    torn[4].to("meta")
    with pytest.raises(UsageError, match="on the device meta, which holds no values"):
        evaluated(torn)


def test_the_default_device_changes_nothing(tmp_path: Path) -> None:
    images = atlas.data.load("mnist-mini", train=False).subset(slice(6))
    model = atlas.models.build("cnn-small", normalize=((0.1,), (0.3,)))
    expected = atlas.evaluate(model, images, atlas.Linf(0.1), progress=False)
    with torch.device("meta"):
        found = atlas.evaluate(model, images, atlas.Linf(0.1), folder=tmp_path, progress=False)
    assert found.summary() == expected.summary()


@pytest.fixture(scope="module")
def begins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """With which of its passes the model comes to each part of an evaluation in a folder."""
    net, found, real = Net(), {"on the clean images": 4}, run_attack.probe

    def probe(*arguments: Any, **options: Any) -> Any:
        found["in the probes"] = net.passes + 1
        return real(*arguments, **options)

    def begin(display: object, label: str) -> None:
        found[f"under {label}"] = net.passes + 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_attack, "probe", probe)
        patch.setattr(run_attack.AttackProgress, "begin", begin)
        evaluated(net, tmp_path_factory.mktemp("passes"))
    return found


each_place = pytest.mark.parametrize(
    "where", ["on the clean images", "in the probes", "under PGD", "under Square"]
)


@each_place
def test_a_model_that_raises_is_named_with_the_place_and_the_line(
    where: str, begins: dict[str, int], tmp_path: Path
) -> None:
    told = rf"the model raised KeyError {where}: .*test_any_model\.py, line \d+, in forward"
    with pytest.raises(ModelError, match=told) as caught:
        evaluated(Net(begins[where] + 1), tmp_path)
    assert caught.value.exit_code == 11


class Ends(Net):
    """Ends the process at one of its passes."""

    def forward(self, x: Tensor) -> Tensor:
        if self.passes + 1 == self.fails_at:
            self.fails_at = 0
            self.end()
        return super().forward(x)

    def end(self) -> None:
        sys.exit(0)


class Grows(Ends):
    """Asks for more memory than any machine has."""

    def end(self) -> None:
        torch.empty(2**55)


@each_place
def test_out_of_memory_is_said_with_what_to_do_and_the_evaluation_resumes(
    where: str, begins: dict[str, int], tmp_path: Path
) -> None:
    net = Grows(begins[where] + 1)
    told = rf"out of memory {where}: .*smaller batch_size \(--batch-size\), then run the same command again"
    with pytest.raises(OutOfMemoryError, match=told) as caught:
        evaluated(net, tmp_path)
    assert caught.value.exit_code == 10
    assert evaluated(net, tmp_path).robust.tolist() == evaluated(Net()).robust.tolist()


def test_out_of_memory_at_the_first_pass_is_no_wrong_model() -> None:
    with pytest.raises(OutOfMemoryError, match=r"on the clean images: .*\(--batch-size\), then start again"):
        evaluated(Grows(1))


def test_out_of_memory_while_searching_in_bfloat16_is_no_fault_of_bfloat16() -> None:
    class Lower(Net):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype == torch.bfloat16:
                torch.empty(2**55)
            return super().forward(x)

    options: Any = {"attacks": ATTACKS, "attack_dtype": "bfloat16", "progress": False}
    with pytest.raises(OutOfMemoryError, match="out of memory under PGD"):
        atlas.evaluate(Lower(), (X, Y), atlas.Linf(0.1), **options)


@each_place
def test_a_model_that_ends_the_process_ends_the_evaluation_with_an_error(
    where: str, begins: dict[str, int], tmp_path: Path
) -> None:
    told = rf"the model called sys.exit\(0\) {where} \(.*test_any_model.py, line \d+, in end\)"
    with pytest.raises(ModelError, match=told) as caught:
        evaluated(Ends(begins[where] + 1), tmp_path)
    assert caught.value.exit_code == 11


class Changes(Net):
    """Answers otherwise after so many passes."""

    def __init__(self, after: float = float("inf")) -> None:
        super().__init__()
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits.roll(1, 1) if self.passes > self.after else logits


@pytest.mark.parametrize("where", ["in the probes", "under PGD", "under Square"])
def test_a_model_that_changes_its_answers_is_flagged_and_its_verdicts_are_not_kept(
    where: str, begins: dict[str, int], tmp_path: Path
) -> None:
    report = evaluated(Changes(begins[where] + 2), tmp_path)
    flag = next(flag for flag in report.flags if flag.name == "changing")
    assert flag.fatal
    assert not report.valid
    assert "changing" in report.clean.reasons
    assert re.match(
        r"after (PGD|Square) the outputs at \d+ of 12 clean images are not those of the", flag.message
    )
    assert (tmp_path / "attack-pgd.npz").exists() == (where == "under Square")
    assert not (tmp_path / "attack-square.npz").exists()
    assert not list(tmp_path.glob("state-*"))
    with pytest.raises(CheckpointError, match="holds no finished evaluation"):
        load_report(tmp_path)
    again = evaluated(Changes(), tmp_path)  # which does not change
    assert again.valid
    assert again.robust.tolist() == evaluated(Net()).robust.tolist()


def test_a_part_of_an_evaluation_of_a_model_that_changes_is_no_part(
    begins: dict[str, int], tmp_path: Path
) -> None:
    options: Any = {"attacks": ATTACKS, "folder": tmp_path, "progress": False, "shard": Shard(0, 2)}
    with pytest.raises(ModelError, match="the model has changed: after PGD"):
        atlas.evaluate(Changes(begins["in the probes"] + 1), (X, Y), atlas.Linf(0.1), **options)


def test_a_random_model_is_not_called_changing() -> None:
    steady = Net().eval()

    def shaky(x: Tensor) -> Tensor:
        logits: Tensor = steady(x)
        return logits + 0.1 * torch.randn_like(logits)

    report = atlas.evaluate(shaky, (X, Y), atlas.Linf(0.1), attacks=ATTACKS, progress=False)
    assert "changing" not in [flag.name for flag in report.flags]
    assert "random" in report.reasons
