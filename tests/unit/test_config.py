"""Configuration: tables to dataclasses and back, and errors that teach."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pytest
import torch

from atlas.attacks import APGD, FGSM, PGD
from atlas.cli.train import setting
from atlas.config import (
    build,
    check_counts,
    check_fields,
    differences,
    fingerprint,
    merge,
    number,
    overridden,
    override,
    table_of,
)
from atlas.errors import UsageError
from atlas.methods import Adv, Atlas, Jac, Method, Natural, Trades
from atlas.presets import load_preset, names
from atlas.threat import L2, Linf
from atlas.training import Optimizer, RunConfig, Training, Validation
from atlas.training.settings import REGISTRIES as NAMES

# --- a small world of its own ---


class Pet:
    pass


@dataclass(frozen=True)
class Cat(Pet):
    lives: int = 9


@dataclass(frozen=True)
class Dog(Pet):
    friend: Pet = Cat()


def kitten(lives: int = 1) -> Cat:
    """A function may stand in a registry too."""
    return Cat(lives)


@dataclass(frozen=True)
class Size:
    width: float = 1.0

    def __post_init__(self) -> None:
        if self.width <= 0:
            raise UsageError(f"width is {self.width}, expected a number above 0")


@dataclass(frozen=True)
class Farm:
    owner: str
    pet: Pet = Cat()
    acres: int = 3
    heated: bool = True
    colour: Literal["red", "blue"] = "red"
    doors: tuple[float, ...] = ()
    share: int | float = 1
    count: int | Literal["many"] = 1
    attic: float | None = None
    size: Size = Size()


class SupportsShape(Protocol):
    shape: int


REGISTRIES: dict[type, dict[str, Any]] = {Pet: {"cat": Cat, "dog": Dog, "kitten": kitten}}


def farm(**values: Any) -> Farm:
    return build(Farm, {"owner": "ann", **values}, REGISTRIES)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, Farm("ann")),
        ({"acres": 5, "heated": False, "colour": "blue"}, Farm("ann", Cat(), 5, False, "blue")),
        ({"pet": {"name": "dog"}}, Farm("ann", Dog())),
        ({"pet": {"name": "dog", "friend": {"name": "cat", "lives": 2}}}, Farm("ann", Dog(Cat(2)))),
        ({"pet": {"name": "kitten"}}, Farm("ann", Cat(1))),
        ({"pet": Cat(4)}, Farm("ann", Cat(4))),
        ({"doors": [1, "8/255", 0.5]}, Farm("ann", doors=(1.0, 8 / 255, 0.5))),
        ({"share": 5}, Farm("ann", share=5)),
        ({"share": "1/4"}, Farm("ann", share=0.25)),
        ({"count": "many"}, Farm("ann", count="many")),
        ({"attic": None}, Farm("ann")),
        ({"attic": 2}, Farm("ann", attic=2.0)),
        ({"size": {"width": 3}}, Farm("ann", size=Size(3.0))),
    ],
    ids=str,
)
def test_build(values: dict[str, Any], wanted: Farm) -> None:
    made = farm(**values)
    assert made == wanted
    assert type(made.share) is type(wanted.share)
    assert build(Farm, table_of(made, REGISTRIES), REGISTRIES) == made


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"acers": 3},
            "unknown key in the configuration: 'acers' .did you mean 'acres'.*choose from: acres, ",
        ),
        ({"pet": {"name": "cta"}}, "unknown pet.name: 'cta' .did you mean 'cat'.*cat, dog, kitten"),
        ({"pet": {"lives": 3}}, "unknown pet.name: .*choose from: cat"),
        ({"pet": {"name": "cat", "live": 3}}, "unknown key in pet: 'live' .did you mean 'lives'"),
        (
            {"pet": {"name": "dog", "friend": {"name": "cat", "lives": "x"}}},
            "pet.friend.lives must be an integer, got 'x'",
        ),
        ({"pet": 3}, "pet must be a table, got 3"),
        ({"acres": 2.5}, "acres must be an integer, got 2.5"),
        ({"acres": "3"}, "acres must be an integer, got '3'"),
        ({"acres": True}, "acres must be an integer, got True"),
        ({"acres": None}, "acres must be an integer, got None"),
        ({"heated": 1}, "heated must be true or false, got 1"),
        ({"heated": "yes"}, "heated must be true or false, got 'yes'"),
        ({"owner": 7}, "owner must be a string, got 7"),
        ({"colour": "bleu"}, "unknown colour: 'bleu' .did you mean 'blue'"),
        ({"colour": ["red"]}, "unknown colour: .*choose from: blue, red"),
        ({"doors": 3}, "doors must be a list, got 3"),
        ({"doors": "12"}, "doors must be a list, got '12'"),
        ({"doors": [1, "wide"]}, "doors must be a number, or a fraction such as 8/255, got 'wide'"),
        ({"count": "lots"}, "count must be an integer or 'many', got 'lots'"),
        ({"attic": "high"}, "attic must be a number"),
        ({"size": {"width": 0}}, "width is 0.0, expected a number above 0"),
        ({"size": {"width": {}}}, "size.width must be a number"),
        ({"size": []}, r"size must be a table, got \[\]"),
    ],
    ids=str,
)
def test_refused_in_words(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        farm(**values)


def test_missing_and_not_a_table() -> None:
    with pytest.raises(UsageError, match="owner is missing; add it"):
        build(Farm, {}, REGISTRIES)
    with pytest.raises(UsageError, match="the configuration must be a table, got 3"):
        build(Farm, 3, REGISTRIES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8/255", 8 / 255),
        (" 8 / 255 ", 8 / 255),
        ("-1/2", -0.5),
        ("0.031", 0.031),
        ("2e-4", 2e-4),
        (3, 3.0),
        (0.5, 0.5),
    ],
)
def test_numbers(text: Any, value: float) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "/",
            "1/",
            "8/0",
            "1/2/3",
            "eps",
            "8\\255",
            "0x10",
            "1_0/",
            "1e3/2e",
            "__import__('os')",
            "1+1",
        ),
        *(True, None, [], {}, "9" * 51, 10**400),
    ],
    ids=str,
)
def test_not_numbers(text: Any) -> None:
    with pytest.raises(UsageError, match=r"the value must be a number, or a fraction such as 8/255, got"):
        number(text)


# --- tables ---


def test_override_makes_what_is_missing_and_changes_nothing_else() -> None:
    table = {"a": {"b": 1, "c": 2}, "d": 3}
    before = copy.deepcopy(table)
    assert override(table, "a.b", 9) == {"a": {"b": 9, "c": 2}, "d": 3}
    assert override(table, "x.y.z", 9) == before | {"x": {"y": {"z": 9}}}
    assert override(table, "d.e", 9) == {"a": {"b": 1, "c": 2}, "d": {"e": 9}}
    assert table == before


def test_merge() -> None:
    base, top = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 9}, "d": {"x": 1}}
    before = copy.deepcopy((base, top))
    assert merge(base, top) == {"a": {"b": 1, "c": 9}, "d": {"x": 1}}
    assert merge({}, base) == base
    assert (base, top) == before


def test_differences_are_named_with_both_values() -> None:
    one = {"a": {"b": 1, "c": 2}, "d": [1]}
    assert differences(one, copy.deepcopy(one)) == []
    assert differences(one, {"a": {"b": 5, "c": 2}, "e": 1}) == [
        *("a.b: 1 -> 5", "d: [1] -> unset", "e: unset -> 1")
    ]


def test_fingerprint() -> None:
    one = {"a": {"b": 1, "c": 2.5}, "d": None}
    assert fingerprint(one) == fingerprint({"d": None, "a": {"c": 2.5, "b": 1}})
    others = [{"a": {"b": 1, "c": 2.6}, "d": None}, {"a": {"b": 1, "c": 2.5}}, {"b": 1, "c": 2.5, "d": None}]
    assert len({fingerprint(table) for table in [one, *others]}) == 4
    assert len(fingerprint(one)) == 16


# --- choices in Python ---


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Optimizer(kind="sdg"), "unknown Optimizer.kind: 'sdg' .did you mean 'sgd'"),  # type: ignore[arg-type]
        (lambda: Training(on_collapse="rolback"), "did you mean 'rollback'"),  # type: ignore[arg-type]
        (lambda: Training(crafting_mode="trian"), "did you mean 'train'"),  # type: ignore[arg-type]
        (lambda: Training(augment="pad-crop"), "did you mean 'pad-crop-flip'"),
        (lambda: Training(batch_size=1), "batch_size must be >= 2, got 1"),
        (lambda: Training(ema=1.0), "ema must be 0 .none. or a decay < 1"),
        (lambda: Training(checkpoint_minutes=math.nan), "checkpoint_minutes must be > 0, got nan"),
        (lambda: Optimizer(lr=0.0), "lr must be > 0 and finite, got 0.0"),
        (lambda: Optimizer(lr=math.inf), "lr must be > 0 and finite, got inf"),
        (lambda: Optimizer(momentum=1.0), "momentum must be >= 0 and < 1, got 1.0"),
        (lambda: Optimizer(weight_decay=-1e-4), "weight_decay must be >= 0 and finite, got -0.0001"),
        (lambda: Optimizer(momentum=0.0, nesterov=True), "nesterov needs a momentum"),
        (lambda: Validation(size=0), "validation.size must be .*got 0"),
        (lambda: Validation(size=1.5), "validation.size must be .*got 1.5"),
        (lambda: Validation(size=-5), "validation.size must be .*got -5"),
        (lambda: Validation(size=math.nan), "validation.size must be .*got nan"),
        (lambda: Validation(size=math.inf), "validation.size must be .*got inf"),
    ],
)
def test_settings_are_validated_where_they_are_made(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


@pytest.mark.parametrize("count", [0, -1, 1.5, math.nan, math.inf])
def test_check_counts_wants_whole_numbers_from_1(count: Any) -> None:
    check_counts(steps=1, restarts=10**12)
    with pytest.raises(UsageError, match=f"restarts must be an integer >= 1, got {count}"):
        check_counts(steps=1, restarts=count)


@dataclass(frozen=True)
class Checked(Farm):
    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"acres": np.int64(4)}, {"acres": 4}),
        ({"acres": torch.tensor(4)}, {"acres": 4}),
        ({"attic": "8/255"}, {"attic": 8 / 255}),
        ({"attic": np.float32(0.5)}, {"attic": 0.5}),
        ({"attic": 1}, {"attic": 1.0}),
        ({"doors": [1, np.float64(2)]}, {"doors": (1.0, 2.0)}),
        ({"share": np.float32(0.25)}, {"share": 0.25}),
        ({"size": {"width": 3}}, {"size": Size(3.0)}),
        ({"pet": Dog()}, {"pet": Dog()}),
    ],
    ids=str,
)
def test_values_made_in_python_become_plain_ones(given: dict[str, Any], plain: dict[str, Any]) -> None:
    made = Checked("ann", **given)
    for name, value in plain.items():
        assert getattr(made, name) == value
        assert type(getattr(made, name)) is type(value)
    json.dumps({k: v for k, v in vars(made).items() if k not in ("pet", "size")})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"colour": "green"}, "unknown Checked.colour: 'green'; choose from: blue, red"),
        ({"colour": np.zeros(2)}, "unknown Checked.colour"),
        ({"acres": 4.0}, "Checked.acres must be an integer, got 4.0"),
        ({"acres": np.zeros(2)}, "Checked.acres must be an integer"),
        ({"acres": 2**64}, "Checked.acres must have at most 63 bits, got an integer of 65 bits"),
        ({"attic": "wide"}, "Checked.attic must be a number"),
        ({"attic": np.zeros(2)}, "Checked.attic must be a number"),
        ({"pet": None}, r"Checked.pet must be a Pet, got None"),
        ({"pet": Cat}, r"Checked.pet must be a Pet, got <class"),
        ({"pet": {"name": "cat"}}, r"Checked.pet must be a Pet, got {'name"),
        ({"size": 3}, "Checked.size must be a Size, got 3"),
        ({"size": {"width": "x"}}, "Checked.size.width must be a number"),
        ({"doors": "12"}, "Checked.doors must be a list"),
    ],
    ids=str,
)
def test_values_made_in_python_are_refused_in_words(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Checked("ann", **given)


def test_types_that_cannot_be_checked_are_left_alone() -> None:
    @dataclass(frozen=True)
    class Own:
        what: OnlyForTypeCheckers  # type: ignore[name-defined]  # noqa: F821
        count: int = 1

    check_fields(Own(3))

    @dataclass(frozen=True)
    class Other:
        what: Any
        protocol: SupportsShape
        names: dict[str, int]

    check_fields(Other(3, 3, {}))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"Other\.names must be a dict, got 3"):
        check_fields(Other(3, 3, 3))  # type: ignore[arg-type]


# --- real configurations ---

FREE, M20 = FGSM(relative_step=1.25, clip_start=False), PGD(steps=20, step_size=0.01)


@pytest.mark.parametrize(
    ("preset", "changes", "method"),
    [
        ("mnist-small-atlas-1", ["method.name=adv"], Adv(FREE)),
        ("mnist-small-atlas-20", ["method.name=adv"], Adv(M20)),
        ("mnist-small-atlas-1", ["method.name=natural"], Natural()),
        ("mnist-small-adv-1", ["method.name=jac"], Jac()),
        ("mnist-small-atlas-1", ["method.name=trades"], Trades(1.0, FREE)),
        ("mnist-small-atlas-1", ["method.name=trades", "method.beta=2"], Trades(2.0, FREE)),
        ("mnist-small-atlas-1", ["method.beta=2", "method.name=trades"], Trades(2.0, FREE)),
        ("mnist-small-atlas-1", ["method.attack.name=pgd", "method.alpha=1e-3"], Atlas(1e-3, 0.3, PGD())),
        (
            "mnist-small-atlas-1",
            ["method.attack.steps=3", "method.attack.name=pgd", "method.name=adv"],
            Adv(PGD(3)),
        ),
        ("mnist-small-adv-1", ["method.attack.name=fgsm"], Adv(FREE)),
    ],
)
def test_another_name_drops_what_the_preset_set_for_the_old_one(
    preset: str, changes: list[str], method: Method
) -> None:
    table = overridden(load_preset(preset)[1], map(setting, changes), NAMES)
    assert RunConfig.of(table).method == method


def test_another_threat_needs_an_eps_and_keeps_none() -> None:
    table = load_preset("mnist-small-adv-1")[1]
    with pytest.raises(UsageError, match=r"threat\.eps is missing"):
        RunConfig.of(overridden(table, [("threat.name", "l2")], NAMES))
    changes = [("threat.eps", 1.5), ("threat.name", "l2")]
    assert RunConfig.of(overridden(table, changes, NAMES)).threat == L2(1.5)
    changes = [("training.validation.attack.name", "apgd"), ("training.validation.attack.steps", 7)]
    attack = RunConfig.of(overridden(table, changes, NAMES)).training.validation.attack
    assert attack == APGD(steps=7)


def test_what_a_user_sets_beside_another_name_is_checked() -> None:
    table, changes = load_preset("mnist-small-atlas-1")[1], [("method.name", "adv"), ("method.alpha", 1e-3)]
    with pytest.raises(UsageError, match="unknown key in method: 'alpha'"):
        RunConfig.of(overridden(table, changes, NAMES))
    with pytest.raises(UsageError, match=r"method\.name: 'adb'"):
        RunConfig.of(overridden(table, [("method.name", "adb")], NAMES))


def test_the_last_of_several_changes_wins() -> None:
    table = load_preset("mnist-small-adv-1")[1]
    changes = [("method.attack", {"name": "pgd", "steps": 3}), ("method.attack.name", "fgsm")]
    assert RunConfig.of(overridden(table, changes, NAMES)).method == Adv(FGSM())
    assert RunConfig.of(overridden(table, changes[::-1], NAMES)).method == Adv(PGD(steps=3))
    changes = [("threat.eps", 0.1), ("threat.eps", 0.2)]
    assert RunConfig.of(overridden(table, changes, NAMES)).threat == Linf(0.2)


def test_a_file_that_changes_a_name_drops_it_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "mnist-small-atlas-20"\nmethod.name = "adv"\nmethod.attack.steps = 5\n')
    assert RunConfig.of(load_preset(str(path))[1]).method == Adv(PGD(steps=5, step_size=0.01))


@pytest.mark.parametrize("preset", names())
def test_every_preset_survives_the_round_trip(preset: str) -> None:
    made = RunConfig.of({"data": "mine.npz", "model": "cnn", **load_preset(preset)[1]})
    table = made.table()
    assert RunConfig.of(json.loads(json.dumps(table))) == made
    assert RunConfig.of(made.table()).table() == table
    assert fingerprint(json.loads(json.dumps(table))) == fingerprint(table)
    assert differences(table, RunConfig.of(table).table()) == []
