"""Which of the user's own code belongs to a model: what it runs, and nothing else of the same script."""

from __future__ import annotations

import importlib
import linecache
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from atlas.errors import UsageError
from atlas.evaluation import evaluate
from atlas.models import build
from atlas.models.code import user_code
from atlas.models.source import fingerprint
from atlas.threat import Linf

SCRIPT = """
import functools

import torch
from torch import nn

import code_helpers
from code_helpers import SHIFT, scaled

LEVELS = 8
STEP = 1 / LEVELS
EPOCHS = 30
CALLS = 0

def twice(function):
    @functools.wraps(function)
    def run(*arguments):
        return function(*arguments) + 0
    return run

def quantised(x):
    return (x / STEP).round() * STEP

class Base(nn.Module):
    gain = 1.0

    def finish(self, x):
        return x * self.gain

class Net(Base):
    '''A network.'''

    def __init__(self, activation=torch.relu):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.activation = activation

    @twice
    def forward(self, x):
        global CALLS
        CALLS += 1
        x = code_helpers.deeper(scaled(quantised(x.flatten(1))))
        from code_helpers import late
        return self.finish(self.linear(self.activation(late(x)))) + SHIFT

    @torch.no_grad()
    def look(self, x):
        return logged(x)

def logged(x):
    return x

def main():
    print("training", EPOCHS)
"""
HELPERS = """
SHIFT = 0.0
FACTOR = [1.0]

def scaled(x):
    return x * FACTOR[0]

def deeper(x):
    return deepest(x)

def deepest(x):
    return x

def late(x):
    return x

def unused(x):
    return x
"""


class Scripts:
    """The two files, which may be edited, and what is loaded from them then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.edit("", "")

    def edit(self, old: str, new: str) -> None:
        assert old in SCRIPT + HELPERS
        for name, text in {"code_script": SCRIPT, "code_helpers": HELPERS}.items():
            (self.folder / f"{name}.py").write_text(text.replace(old, new) if old else text)

    def net(self, **options: Any) -> nn.Module:
        for name in ("code_script", "code_helpers"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        linecache.clearcache()
        torch.manual_seed(0)
        model: nn.Module = importlib.import_module("code_script").Net(**options)
        return model


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripts:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        sys, "dont_write_bytecode", True
    )  # files of the same second and size would not be read again
    return Scripts(tmp_path)


USED = [
    ("x.flatten(1)", "1 - x.flatten(1)", "Net in code_script.py"),
    ("gain = 1.0", "gain = 2.0", "Base in code_script.py"),
    ("* STEP", "* STEP / 2", "quantised in code_script.py"),
    ("LEVELS = 8", "LEVELS = 9", "LEVELS in code_script.py"),
    ("1 / LEVELS", "2 / LEVELS", "STEP in code_script.py"),
    ("(*arguments) + 0", "(*arguments) + 1", "twice.<locals>.run in code_script.py"),
    ("def logged(x):\n    return x", "def logged(x):\n    return -x", "logged in code_script.py"),
    ("SHIFT = 0.0", "SHIFT = 0.5", "SHIFT in code_script.py"),
    ("x * FACTOR[0]", "x / FACTOR[0]", "scaled in code_helpers.py"),
    ("FACTOR = [1.0]", "FACTOR = [2.0]", "FACTOR in code_helpers.py"),
    ("def deepest(x):\n    return x", "def deepest(x):\n    return -x", "deepest in code_helpers.py"),
    ("def late(x):\n    return x", "def late(x):\n    return -x", "late in code_helpers.py"),
]


@pytest.mark.parametrize(("old", "new", "name"), USED, ids=[name for *_, name in USED])
def test_a_change_of_what_it_runs_is_noticed_and_named(
    old: str, new: str, name: str, scripts: Scripts
) -> None:
    before = scripts.net()
    code, known = user_code(before), fingerprint(before)
    scripts.edit(old, new)
    after = scripts.net()
    now = user_code(after)
    assert [key for key in {*code, *now} if code.get(key) != now.get(key)] == [name]
    assert fingerprint(after) != known


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("EPOCHS = 30", "EPOCHS = 60"),
        ('print("training", EPOCHS)', "pass"),
        ("import functools", "import functools, json"),
        ("def main", "# A comment.\n\n\ndef main"),
        ("def unused(x):\n    return x", ""),
    ],
)
def test_an_edit_elsewhere_in_the_script_changes_nothing(old: str, new: str, scripts: Scripts) -> None:
    before = scripts.net()
    code, known = user_code(before), fingerprint(before)
    scripts.edit(old, new)
    after = scripts.net()
    assert user_code(after) == code
    assert fingerprint(after) == known


def test_what_changes_while_it_runs_is_no_other_model(scripts: Scripts) -> None:
    model = scripts.net()
    known = fingerprint(model)
    with torch.no_grad():
        model(torch.rand(2, 1, 2, 2))
    assert fingerprint(model) == known


def test_a_function_that_it_was_given_belongs_to_it(scripts: Scripts) -> None:
    def steep(x: torch.Tensor, slope: float) -> torch.Tensor:
        return slope * x

    name = f"{steep.__qualname__} in test_code.py"
    assert name not in user_code(scripts.net())
    assert name in user_code(scripts.net(activation=partial(steep, slope=2.0)))


def test_models_of_atlas_and_of_torch_have_no_code_of_the_user() -> None:
    assert user_code(build("cnn-small")) == {}
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    assert user_code(model) == {}


def test_an_evaluation_says_what_has_changed_and_how_to_continue(scripts: Scripts, tmp_path: Path) -> None:
    x, y, folder = torch.rand(6, 1, 2, 2), torch.arange(6) % 3, tmp_path / "evaluation"
    options: Any = {"threat": Linf(0.1), "only": "PGD-20", "folder": folder, "progress": False}
    first = evaluate(scripts.net(), (x, y), **options)
    scripts.edit("EPOCHS = 30", "EPOCHS = 60")
    assert evaluate(scripts.net(), (x, y), **options).worst == first.worst
    scripts.edit("'''A network.'''", "'''The network.'''")
    with pytest.raises(
        UsageError, match=r"code of the model has changed \(Net in code_script\.py\)"
    ) as refused:
        evaluate(scripts.net(), (x, y), **options)
    key = first.about["model"]
    assert f"continue with model_key='{key}' in Python, else choose another folder" in str(refused.value)
    assert evaluate(scripts.net(), (x, y), model_key=key, **options).worst == first.worst
    scripts.edit("", "")
    other = scripts.net()
    nn.init.zeros_(other.get_submodule("linear").bias)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the model has other layers or weights: choose another folder"):
        evaluate(other, (x, y), **options)
