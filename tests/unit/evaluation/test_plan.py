"""Suites and plans: the budgets of the paper and of AutoAttack, and what may be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from atlas.attacks import (
    APGD,
    PGD,
    MultiTargeted,
    RayS,
    Square,
    TargetedAPGD,
    TargetedFAB,
    Transfer,
    Untargeted,
    suites,
)
from atlas.errors import UsageError
from atlas.evaluation.plan import planned
from atlas.threat import L2, Linf


def model(x: Tensor) -> Tensor:
    return x.flatten(1)[:, :3]


THREAT = Linf(0.1)


def attacks(name: str, data: str = "") -> dict[str, object]:
    return dict(planned(THREAT, name, data, surrogates=[model]).attacks)


def test_autoattack_is_the_standard_one_in_its_order() -> None:
    plan = planned(THREAT, "autoattack", "cifar10")
    assert plan.cascade
    assert list(plan.attacks.values()) == [
        APGD(steps=100, restarts=1),
        TargetedAPGD(steps=100, restarts=1, targets=9),
        TargetedFAB(steps=100, restarts=1, targets=9, alpha_max=0.1, eta=1.05, beta=0.9),
        Square(queries=5000, p=0.8, restarts=1),
    ]
    assert not planned(THREAT, "autoattack", "cifar10", alone=True).cascade


def test_the_budgets_of_the_paper() -> None:
    pgd = PGD(steps=1000, step_size=0.01)
    assert list(attacks("paper", "mnist").values()) == [
        Transfer((model,), pgd),
        PGD(steps=20, step_size=0.01),
        pgd,
        Untargeted(restarts=20, steps=50),
        MultiTargeted(restarts=20, steps=50),
    ]
    assert list(attacks("paper", "cifar10").values())[3:] == [
        Untargeted(restarts=10, steps=100),
        MultiTargeted(restarts=5, steps=20),
    ]
    assert list(attacks("paper", "cifar100").values())[3:] == [Untargeted(restarts=10, steps=100)]
    assert list(attacks("rays").values()) == [RayS(queries=40000)]
    assert len(attacks("full", "mnist")) == 5 + 4 + 1


@pytest.mark.parametrize("name", suites.names())
def test_every_suite_can_be_built(name: str) -> None:
    assert attacks(name)
    assert suites.suite(name).description


def test_the_black_box_needs_surrogates() -> None:
    plan = planned(THREAT, "paper", "mnist")
    assert list(plan.left_out) == ["black box"]
    assert list(plan.attacks) == ["PGD-20", "PGD-1000", "Un-T 20x50", "Multi-T 20x50"]


def test_what_is_not_defined_for_the_threat_is_left_out_of_a_suite_and_refused_by_name() -> None:
    plan = planned(L2(1.0), "full", "mnist")
    assert plan.left_out["RayS"] == "is not defined for L2(eps=1.0)"
    assert "RayS" not in plan.attacks
    assert "RayS" in planned(L2(1.0), "full", "mnist", only=["rays"]).attacks


def test_attacks_by_label_or_name_from_a_suite_or_beside_it() -> None:
    plan = planned(THREAT, "paper", "mnist", only=["pgd-20", "un-t", "square"])
    assert plan.attacks == {
        "PGD-20": PGD(steps=20, step_size=0.01),
        "Un-T 20x50": Untargeted(restarts=20, steps=50),
        "square": Square(),
    }


def test_a_name_stands_for_all_attacks_of_that_name() -> None:
    assert list(planned(THREAT, "paper", "mnist", only=["pgd"]).attacks) == ["PGD-20", "PGD-1000"]


def test_a_suite_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'on = "standing"\nattacks = [{ label = "mine", name = "pgd", steps = 7 }]\nincludes = ["rays"]'
    )
    plan = planned(THREAT, str(path), "mnist")
    assert plan.attacks == {"RayS": RayS(queries=40000), "mine": PGD(steps=7)}
    assert plan.cascade


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("attacks = 3", "suite mine.attacks must be a list, got 3"),
        ("attacks = [3]", "suite mine.attacks must be a dict, got 3"),
        ('attacks = [{ name = "pgd" }]', "attacks must have a label and a name"),
        ("attack = []", "did you mean 'attacks'"),
        ("=", "cannot be read|can be read"),
        ('attacks = [{ label = "a", name = "pgd", step = 3 }]', "did you mean 'steps'"),
        ('attacks = [{ label = "a", name = "gdp" }]', "did you mean 'pgd'"),
        ('includes = ["all"]', "unknown suite 'all'"),
        ("includes = 3", "suite mine.includes must be a list, got 3"),
        ('on = "standnig"', "did you mean 'standing'"),
        ("cascade = 1", "cascade must be true or false, got 1"),
        ('attacks = [{ label = 3, name = "pgd" }]', "attacks must have a label and a name"),
        ('attacks = [{ label = "RayS", name = "pgd" }]\nincludes = ["rays"]', "share a label"),
    ],
)
def test_a_suite_that_cannot_be_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        planned(THREAT, str(path), "mnist")


def test_a_suite_may_include_another_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    two.write_text("includes = ['rays']")
    one.write_text(f"includes = ['{two}', 'autoattack']")
    assert "RayS" in planned(THREAT, str(one), "mnist").attacks


def test_tables_tell_plans_apart() -> None:
    one = planned(THREAT, "paper", "mnist", surrogates=[model])
    assert one.table() == planned(THREAT, "paper", "mnist", surrogates=[model]).table()
    other = torch.nn.Flatten()
    assert one.table() != planned(THREAT, "paper", "mnist", surrogates=[other]).table()
    assert one.table() != planned(Linf(0.2), "paper", "mnist", surrogates=[model]).table()
    assert one.table() != planned(THREAT, "paper", "cifar10", surrogates=[model]).table()
