"""A custom model as module.path:factory, found in the working directory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from atlas.errors import UsageError
from atlas.models import build

SOURCE = """
import torch
from torch import nn

def both(num_classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], num_classes))

def only_classes(*, num_classes=3, hidden=5):
    return nn.Sequential(nn.Flatten(), nn.Linear(48, num_classes))

def nothing():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 6))

def everything(**options):
    return both(**options)

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.fc = nn.Linear(48, num_classes)

    def forward(self, x):
        return self.fc(x.flatten(1))

def not_a_model():
    return {"weights": 1}

def needs_more(num_classes, width):
    return nothing()

def broken(num_classes):
    raise TypeError("mine")

ready = nothing()
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "mine_pkg").mkdir()
    (tmp_path / "mine_pkg" / "nets.py").write_text(SOURCE)
    (tmp_path / "mine_broken.py").write_text("import nothing_called_this\n")
    for name in ("mine_pkg", "mine_pkg.nets", "mine_broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("factory", "classes"), [("both", 4), ("only_classes", 4), ("nothing", 6), ("everything", 4), ("Net", 4)]
)
def test_a_factory_is_given_what_its_signature_takes(factory: str, classes: int) -> None:
    model = build(f"mine_pkg.nets:{factory}", num_classes=4, shape=(3, 4, 4))
    assert model(torch.rand(2, 3, 4, 4)).shape == (2, classes)


@pytest.mark.usefixtures("folder")
def test_its_weights_are_a_function_of_the_seed_and_it_can_be_normalized() -> None:
    before = torch.get_rng_state()
    one, two, other = (
        build("mine_pkg.nets:both", 4, (3, 4, 4), normalize=((0.5,) * 3, (1.0,) * 3), seed=seed)
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    x = torch.rand(2, 3, 4, 4)
    assert torch.equal(one(x), two(x))
    assert not torch.equal(one(x), other(x))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine_pkg.nets:bothh", "did you mean 'both'"),
        ("mine_pkg.nets:not_a_model", "must be a function or class .* but it made a dict"),
        ("mine_pkg.nets:needs_more", "missing 1 required .*'width'; it must be a function"),
        ("mine_pkg.nets:ready", "must be a function .* got a Sequential"),
        ("mine_pkg.nets:number", "must be a function .* got a int"),
        ("mine_pkg.nett:both", "No module named 'mine_pkg.nett'.*importable from"),
        ("mine_broken:both", "ModuleNotFoundError: No module named 'nothing_called_this'"),
        (":both", "importing '' failed"),
    ],
)
def test_what_is_wrong_is_said(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(name)


@pytest.mark.usefixtures("folder")
def test_the_choices_are_what_the_module_defines() -> None:
    with pytest.raises(UsageError) as caught:
        build("mine_pkg.nets:zzz")
    assert "choose from: Net, both, broken" in str(caught.value)


@pytest.mark.usefixtures("folder")
def test_an_error_inside_the_factory_is_named_and_kept() -> None:
    with pytest.raises(UsageError, match="TypeError: mine") as caught:
        build("mine_pkg.nets:broken")
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("text", ["import sys; sys.exit(0)", "def net():\n    raise SystemExit"])
def test_a_module_or_factory_that_ends_the_process_is_an_error(text: str, folder: Path) -> None:
    (folder / "mine_ending.py").write_text(text)
    with pytest.raises(UsageError, match="failed with SystemExit"):
        build("mine_ending:net")
