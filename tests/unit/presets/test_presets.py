"""Presets: every row of the paper's tables is there, with the paper's settings written out once more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from atlas import models, presets
from atlas.attacks import FGSM, PGD, Attack
from atlas.errors import UsageError
from atlas.methods import Adv, Atlas, Jac, Method, Trades, TradesJac
from atlas.presets import description, load_preset, names
from atlas.threat import Linf
from atlas.training import RunConfig


class Task(NamedTuple):
    """What the rows of a data set share (App. B)."""

    data: str
    model: str
    eps: float
    lr: float
    batch_size: int
    strong: Attack
    augment: str


MNIST = Task("mnist", "cnn", 0.3, 0.01, 128, PGD(steps=20, step_size=0.01), "none")
SMALL = MNIST._replace(model="cnn-small")
CIFAR10 = Task("cifar10", "wrn-28-8", 8 / 255, 0.1, 64, PGD(steps=10, step_size=0.007), "pad-crop-flip")
CIFAR100 = CIFAR10._replace(data="cifar100")

# One step: a uniform start in the ball and 1.25 eps. On MNIST the start is not clipped to the box.
FREE, CLIPPED = FGSM(relative_step=1.25, clip_start=False), FGSM(relative_step=1.25)
FREE_KL, CLIPPED_KL = (FGSM(relative_step=1.25, clip_start=c, objective="kl") for c in (False, True))
# Several steps: the validation attack's; TRADES climbs the KL from a thousandth of Gaussian noise.
M20, C10, C5 = MNIST.strong, CIFAR10.strong, PGD(steps=5, step_size=0.007)
M20_KL = PGD(steps=20, step_size=0.01, objective="kl", start_at="gaussian")
C10_KL = PGD(steps=10, step_size=0.007, objective="kl", start_at="gaussian")

ROWS: dict[str, tuple[Task, Method]] = {
    # Table 1, MNIST
    "mnist-jac": (MNIST, Jac(0.5)),
    "mnist-adv-1": (MNIST, Adv(FREE)),
    "mnist-trades-1": (MNIST, Trades(1.0, FREE_KL)),
    "mnist-atlas-1": (MNIST, Atlas(1e-5, 0.3, FREE)),
    "mnist-adv-20": (MNIST, Adv(M20)),
    "mnist-trades-20": (MNIST, Trades(1.0, M20_KL)),
    "mnist-atlas-20": (MNIST, Atlas(5e-6, 0.2, M20)),
    # the same on a network that a CPU trains in minutes
    "mnist-small-jac": (SMALL, Jac(0.5)),
    "mnist-small-adv-1": (SMALL, Adv(FREE)),
    "mnist-small-trades-1": (SMALL, Trades(1.0, FREE_KL)),
    "mnist-small-atlas-1": (SMALL, Atlas(1e-5, 0.3, FREE)),
    "mnist-small-adv-20": (SMALL, Adv(M20)),
    "mnist-small-trades-20": (SMALL, Trades(1.0, M20_KL)),
    "mnist-small-atlas-20": (SMALL, Atlas(5e-6, 0.2, M20)),
    # Table 1, CIFAR-10, and the five-step ADV of Section 4
    "cifar10-jac": (CIFAR10, Jac(0.5)),
    "cifar10-adv-1": (CIFAR10, Adv(CLIPPED)),
    "cifar10-trades-1": (CIFAR10, Trades(2.0, CLIPPED_KL)),
    "cifar10-atlas-1": (CIFAR10, Atlas(2e-4, 5.0, CLIPPED)),
    "cifar10-adv-5": (CIFAR10, Adv(C5)),
    "cifar10-adv-10": (CIFAR10, Adv(C10)),
    "cifar10-trades-10": (CIFAR10, Trades(4.0, C10_KL)),
    "cifar10-atlas-10": (CIFAR10, Atlas(1e-4, 5.0, C10)),
    # Table 1, CIFAR-100
    "cifar100-jac": (CIFAR100, Jac(0.5)),
    "cifar100-adv-1": (CIFAR100, Adv(CLIPPED)),
    "cifar100-trades-1": (CIFAR100, Trades(2.0, CLIPPED_KL)),
    "cifar100-atlas-1": (CIFAR100, Atlas(2e-4, 5.0, CLIPPED)),
    "cifar100-adv-10": (CIFAR100, Adv(C10)),
    "cifar100-trades-10": (CIFAR100, Trades(4.0, C10_KL)),
    "cifar100-atlas-10": (CIFAR100, Atlas(1e-4, 10.0, C10)),
    # App. C: the two halves of ATLAS
    "cifar10-atlas-l-1": (CIFAR10, Atlas(2e-4, 0.0, CLIPPED)),
    "cifar10-atlas-g-1": (CIFAR10, Atlas(0.0, 5.0, CLIPPED)),
    "cifar100-atlas-l-1": (CIFAR100, Atlas(2e-4, 0.0, CLIPPED)),
    "cifar100-atlas-g-1": (CIFAR100, Atlas(0.0, 5.0, CLIPPED)),
    # App. D.1
    "cifar10-trades-jac-1": (CIFAR10, TradesJac(alpha=2e-4, beta=0.5, attack=CLIPPED_KL)),
    "cifar100-trades-jac-1": (CIFAR100, TradesJac(alpha=2e-4, beta=0.5, attack=CLIPPED_KL)),
}


NEUTRAL = {"standard", "finetune"}
"""Presets for any data and model, which a user sets."""


def test_neutral_presets_need_data_and_model() -> None:
    for name in NEUTRAL:
        table = load_preset(name)[1]
        with pytest.raises(UsageError, match="data is missing"):
            RunConfig.of(table)
        with pytest.raises(UsageError, match="model is missing"):
            RunConfig.of({**table, "data": "mine.npz"})


def test_every_row_of_the_paper_is_there() -> None:
    assert set(ROWS) <= set(names())


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    task, method = ROWS[name]
    config = RunConfig.of(load_preset(name)[1])
    training = config.training
    attack = config.method.attack
    made = (
        replace(config.method, attack=attack.with_default_objective(config.method.objective))
        if attack
        else config.method
    )
    asked = replace(method, attack=method.attack.with_default_objective("ce")) if method.attack else method
    assert made == asked
    assert (config.data, config.model, config.threat) == (task.data, task.model, Linf(task.eps))
    assert (training.optimizer.kind, training.optimizer.lr) == ("sgd", task.lr)
    if task.data != "mnist":  # for MNIST the paper states neither
        assert (training.optimizer.momentum, training.optimizer.weight_decay) == (0.9, 2e-4)
    assert (training.batch_size, training.augment) == (task.batch_size, task.augment)
    assert (training.validation.size, training.validation.attack) == (5000, task.strong)
    schedule = training.schedule
    assert (schedule.kind, schedule.plateau, schedule.patience, schedule.factor) == ("guided", 2, 10, 0.2)
    # JAC has no adversary whose eps could grow, and its alpha is the paper's from the start.
    assert schedule.ramp_epochs == (0 if isinstance(method, Jac) else 15)
    assert training.crafting_mode == "eval"


@pytest.mark.parametrize("name", names())
def test_every_preset_builds_and_is_described(name: str) -> None:
    _, table = load_preset(name)
    assert "description" not in table
    assert "extends" not in table
    RunConfig.of({"data": "mine.npz", "model": "cnn", **table} if name in NEUTRAL else table)
    assert len(description(name)) > 10


def test_descriptions_tell_the_rows_apart() -> None:
    assert len({description(name) for name in names()}) == len(names())


@pytest.mark.parametrize("model", sorted({load_preset(name)[1]["model"] for name in {*names()} - NEUTRAL}))
def test_models_of_the_presets_can_be_built(model: str) -> None:
    shape = (3, 32, 32) if model.startswith(("wrn", "preact")) else (1, 28, 28)
    assert sum(p.numel() for p in models.build(model, num_classes=10, shape=shape).parameters()) > 10_000


def test_parts_are_no_presets() -> None:
    assert not [name for name in names() if name.startswith("_")]
    with pytest.raises(UsageError, match="method is missing"):
        RunConfig.of(load_preset("_mnist")[1])


# --- custom files ---


def written(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    text = (
        'extends = "mnist-atlas-1"\ndescription = "mine"\n[method]\nalpha = "1/1000"\n[training]\nseed = 3\n'
    )
    name, table = load_preset(written(tmp_path, text))
    config = RunConfig.of(table)
    assert name == "mine"
    assert config.method == Atlas(1e-3, 0.3, FREE)
    assert config.training.seed == 3
    assert config.training.batch_size == 128


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown preset 'mnist-atlas1' .did you mean 'mnist-atlas-1'"):
        load_preset("mnist-atlas1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data = ", "is not a TOML file that can be read"),
        ("a = " + "[" * 5000 + "]" * 5000, "is not a TOML file that can be read"),
        ("a = " + "9" * 5000, "is not a TOML file that can be read"),
        ('extends = "mnist-atlas-2"', "unknown preset 'mnist-atlas-2' .did you mean"),
        ("extends = 3", "extends = 3 in .*, expected a preset's name or a .toml file in the same"),
        ('extends = "mine.toml"', "goes in a circle"),
        ('extends = "../mine.toml"', "a .toml file in the same folder"),
        ('extends = "other.toml"', "there is no file"),
        ('extends = "../secrets"', "unknown preset"),
    ],
    ids=["cut", "deep", "digits", "name", "type", "itself", "path", "none", "outside"],
)
def test_unreadable_files(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_preset(written(tmp_path, text))


def test_not_utf8_not_there_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(UsageError, match="is not a TOML file"):
        load_preset(str(tmp_path / "mine.toml"))
    with pytest.raises(UsageError, match="there is no file"):
        load_preset(str(tmp_path / "none.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UsageError, match="there is no file"):
        load_preset(str(tmp_path / "folder.toml"))


def test_a_circle_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files: dict[str, Any] = {name: tmp_path / f"{name}.txt" for name in ("a", "b")}
    files["a"].write_text('extends = "b"')
    files["b"].write_text('extends = "a"')
    monkeypatch.setattr(presets, "_files", lambda: files)
    with pytest.raises(UsageError, match="goes in a circle"):
        load_preset("a")


def test_a_file_extends_another_next_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "base.toml").write_text('extends = "mnist-quick-adv-1"\ndata = "photos.npz"\n')
    (folder / "other.toml").write_text('extends = "base.toml"\nthreat.eps = 0.1\n')
    monkeypatch.chdir(tmp_path)
    table = load_preset("mine/other.toml")[1]
    assert (table["data"], table["threat"]["eps"], table["method"]["name"]) == ("photos.npz", 0.1, "adv")
