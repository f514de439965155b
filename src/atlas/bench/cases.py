"""What is measured: a method by name and number of attack steps, such as `atlas-10`."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from atlas.attacks import FGSM, PGD, Climb
from atlas.bench.passes import ALPHA, BETA, EQUATIONS, Equation, Passes
from atlas.errors import UsageError, choose
from atlas.methods import METHODS, Method

MEASURED = (
    *("natural", "jac", "adv-1", "trades-1", "atlas_l-1", "atlas_g-1", "atlas-1", "trades_jac-1"),
    *("adv-10", "trades-10", "atlas-10"),
)
"""What is measured unless told otherwise: the rows of the paper."""
REFERENCE = "adv-1"
"""The step that all others are compared with."""


@dataclass(frozen=True)
class Case:
    """A method with everything set, and the equation that it is held against."""

    label: str
    method: Method
    steps: int
    equation: Equation | None

    @property
    def name(self) -> str:
        """The method's, without its steps."""
        return self.label.rpartition("-")[0] if self.steps else self.label

    @property
    def passes(self) -> Passes | None:
        return self.equation.passes.attacked(self.steps) if self.equation else None


def case(label: str) -> Case:
    """The case of a label: a method's name, then for a method with an attack its steps (1 if not given)."""
    found = re.fullmatch(r"(\w+)(?:-([1-9]\d{0,3}))?", label)
    name, steps = (found[1], found[2]) if found else (label, None)
    make = choose("method", name, METHODS)
    wanted = inspect.signature(make).parameters
    if steps is not None and "attack" not in wanted:
        raise UsageError(f"method {label!r}: {name} makes no adversaries and takes no steps; write {name!r}")
    count = int(steps or 1) if "attack" in wanted else 0
    attack = _attack(count, getattr(make, "objective", "ce") == "kl")
    settings = {"alpha": ALPHA, "beta": BETA, "attack": attack}
    method = make(**{key: value for key, value in settings.items() if key in wanted})
    return Case(f"{name}-{count}" if count else name, method, count, EQUATIONS.get(name))


def _attack(steps: int, climbs_kl: bool) -> Climb:
    """As in the presets: FGSM, or PGD, from the start that the objective needs."""
    return FGSM() if steps <= 1 else PGD(steps=steps, start_at="gaussian" if climbs_kl else "uniform")
