"""Validation class by class: what a model with one answer reaches stands beside its accuracy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from atlas.attacks import FGSM
from atlas.data import Images
from atlas.methods import Adv
from atlas.threat import Linf
from atlas.training import Optimizer, Schedule, Training, Validation
from atlas.training.fit import Result, fit
from atlas.training.schedule import accuracies


def test_accuracies_of_classes() -> None:
    """The second class has no images."""
    shares = {"val_clean": 0.95, "val_robust": 0.81, "val_majority": 0.9, "val_balanced": 0.45}
    assert accuracies([90, 0, 10], [90, 0, 5], [81, 0, 0]) == shares


@pytest.mark.parametrize(
    ("sizes", "imbalanced"), [([59, 41], False), ([61, 39], True), ([19, *[9] * 9], False), ([100], False)]
)
def test_a_little_more_of_one_class_is_no_imbalance(sizes: list[int], imbalanced: bool) -> None:
    assert ("val_majority" in accuracies(sizes, sizes, sizes)) == imbalanced


@pytest.mark.parametrize(
    ("sizes", "right", "constant"),
    [
        ([5, 5, 7], [0, 0, 7], True),
        ([5, 5, 7], [0, 1, 7], False),
        ([5, 5, 7], [0, 0, 6], False),
        ([5, 5, 7], [0, 0, 0], False),
        ([7], [7], False),
    ],
)
def test_one_answer(sizes: list[int], right: list[int], constant: bool) -> None:
    assert ("constant" in accuracies(sizes, right, right)) == constant


class Biased(nn.Module):
    """Says class 1 whatever it sees, and hardly learns."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2)
        with torch.no_grad():
            self.linear.weight.mul_(0.01)
            self.linear.bias.copy_(torch.tensor([-5.0, 5.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))  # type: ignore[no-any-return]


def trained(model: nn.Module, rare: int, folder: Path | None = None, *, progress: bool = False) -> Result:
    x = torch.rand(100, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    y = (torch.arange(100) >= rare).long()
    x = (0.2 * x + 0.7 * y[:, None, None, None]).clamp(0, 1)
    images = Images(x, y, 2, class_names=("scratch", "fine"))
    training = Training(
        batch_size=20,
        optimizer=Optimizer(lr=0.5 if not isinstance(model, Biased) else 1e-6),
        schedule=Schedule(kind="constant", epochs=2, ramp_epochs=0),
        validation=Validation(size=50, attack=FGSM()),
    )
    known = {"threat": Linf(0.05), "training": training, "folder": folder, "progress": progress}
    return fit(model, images, Adv(attack=FGSM()), **known)


def test_one_answer_to_imbalanced_classes_cannot_be_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = trained(Biased(), 10, tmp_path, progress=True)
    share = result.best_robust
    assert 0.8 < share < 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"mean over classes (a constant answer has {share:.1%} robust)" in said
    assert f" {share:.1%} * 50.0% " in said, "robust and balanced accuracy of the first epoch"
    assert said.count("WARNING: constant: after epoch 1 every validation image gets the same answer") == 1
    assert f"so the accuracy is the share of one class, {share:.1%}" in said
    assert said.count("WARNING: constant: the weights of the best epoch") == 1
    assert repr(result).endswith(f"{share:.2%} (majority {share:.1%}, balanced 50.0%)")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (first, second) = [line for line in lines if line["kind"] == "epoch"]
    assert first["constant"]
    assert second["val_majority"] == share
    assert second["val_balanced"] == 0.5


def test_where_nothing_is_shown_it_is_a_warning_of_pythons() -> None:
    with pytest.warns(UserWarning, match="WARNING: constant"):
        trained(Biased(), 10)


def test_balanced_classes_and_a_model_that_learns_have_neither(capsys: pytest.CaptureFixture[str]) -> None:
    result = trained(nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), 50, progress=True)
    assert result.best_robust > 0.9
    assert not {"val_majority", "val_balanced", "constant"} & result.epochs[-1].keys()
    assert "balanced" not in capsys.readouterr().err
