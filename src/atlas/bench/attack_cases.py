"""Which attacks are measured beside those of other libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atlas.attacks import Attack, Square
from atlas.attacks.suites import suite
from atlas.errors import UsageError, choose
from atlas.evaluation.plan import build_attack

AUTOATTACK = "autoattack"
PAPER = ("PGD-1000", "Un-T")
"""How the labels of the paper's attacks begin that are measured."""


@dataclass(frozen=True)
class AttackCase:
    """An attack, or a chain of them, each on what those before it have left."""

    name: str
    label: str
    attacks: tuple[Attack, ...]
    settings: str
    """In words."""

    def passes(self, num_classes: int) -> int:
        """Those of the whole budget on one image: forward ones, and input gradients, which cost as much."""
        return sum(a.attempts(num_classes) * a.steps * (a.forwards + a.white_box) for a in self.attacks)

    def shortest(self) -> tuple[Attack, ...]:
        """The attacks with attempts of one step."""
        return tuple(
            replace(a, queries=1) if isinstance(a, Square) else replace(a, steps=1)  # type: ignore[type-var]
            for a in self.attacks
        )


def attack_cases(data: str, budget: float = 1.0, only: Sequence[str] = ()) -> list[AttackCase]:
    """The paper's two strongest attacks, and AutoAttack: each of its stages alone, and the whole.

    Their settings are those of the suites for the data set; `budget` is the share of their steps and queries
    that they are given. `only` picks some of them by name.
    """
    if not 0 < budget <= 1:
        raise UsageError(f"the budget is {budget}; wanted a share of the full one, above 0 and at most 1")
    paper = {label: t for label, t in suite("paper", data).attacks.items() if label.startswith(PAPER)}
    found = {}
    for label, full in {**paper, **suite(AUTOATTACK, data).attacks}.items():
        table = _scaled(full, budget)
        found[table["name"]] = AttackCase(table["name"], label, (build_attack(table),), _settings(table))
    chain = list(found.values())[len(paper) :]
    settings = ", ".join(case.label for case in chain) + ", each on what is left"
    attacks = tuple(attack for case in chain for attack in case.attacks)
    found[AUTOATTACK] = AttackCase(AUTOATTACK, "AutoAttack", attacks, settings)
    return [choose("attack", name, found) for name in only or found]


def _scaled(table: Mapping[str, Any], budget: float) -> dict[str, Any]:
    size = "queries" if "queries" in table else "steps"
    return {**table, size: max(1, round(table[size] * budget))}


def _settings(table: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in table.items() if key != "name")
