"""What a sweep is: a preset, the values that its settings may take, and how they are chosen."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from atlas.attacks import Attack
from atlas.config import ConfigDict, number, override, parse_value, value_at
from atlas.errors import UsageError
from atlas.evaluation.plan import attack_table
from atlas.training import RunConfig
from atlas.training.settings import REGISTRIES

Space = dict[str, BaseDistribution]
"""What a setting may be, by its dotted key."""
Point = Mapping[str, Any]
"""A value for each key of a space."""
MEASURES = ("threat.", "data", "training.validation.size", "training.validation.attack.")
"""Settings by which trials are scored; the last only without a score attack."""
DEFAULT_FACTORS = {"method.alpha": 100.0, "method.beta": 10.0, "training.optimizer.lr": 10.0}
"""The default space: from the preset's value divided by this to its value times this, log-uniform. alpha's
scale is known least: App. F tries it over orders of magnitude, beta and the rate over one or two."""


@dataclass(frozen=True)
class Sweep:
    """What is swept, and how; not the number of trials, which may grow."""

    name: str
    """The base preset's name or file."""
    base: ConfigDict
    """Its table, with `--set`."""
    space: Space
    grid: bool
    seed: int = 0
    prune: bool = True
    score: tuple[str, Attack] | None = None
    """The attack that scores trials, with its label; None for the validation attack."""

    def __post_init__(self) -> None:
        if self.measures and not self.grid:
            raise UsageError(
                f"a search over {', '.join(self.measures)} would find the weakest attack or the easiest "
                "images, not the best model: trials are scored by it. Set it for all with --set, or list "
                "values with --grid."
            )

    @property
    def measures(self) -> list[str]:
        """The swept keys by which trials are scored, so that their scores cannot be compared."""
        scored_by = MEASURES if self.score is None else MEASURES[:-1]
        return [key for key in self.space if key.startswith(scored_by)]

    @property
    def points(self) -> list[Point]:
        """The points of the first trials: all of a grid, the last key varying fastest; of a search the
        preset's values, if they lie in the space."""
        if self.grid:
            choices = [d.choices for d in self.space.values() if isinstance(d, CategoricalDistribution)]
            return [dict(zip(self.space, values, strict=True)) for values in itertools.product(*choices)]
        table = RunConfig.of(self.base).table()
        point = {key: value_at(table, key) for key in self.space}
        return [point] if all(_contains(self.space[key], value) for key, value in point.items()) else []

    @property
    def score_label(self) -> str:
        return "the validation attack" if self.score is None else self.score[0]

    def definition(self) -> dict[str, Any]:
        """What workers that join must agree on, as JSON has it."""
        plain = {
            "base": RunConfig.of(self.base).table(),
            "space": {key: json.loads(distribution_to_json(d)) for key, d in self.space.items()},
            "kind": "grid" if self.grid else "search",
            "seed": self.seed,
            "prune": self.prune,
            "score": None if self.score is None else attack_table(self.score[1]),
        }
        return json.loads(json.dumps(plain))  # type: ignore[no-any-return]


def space_from_options(
    base: RunConfig, grid: Sequence[str] = (), ranges: Sequence[str] = (), choices: Sequence[str] = ()
) -> Space:
    """The space that the options of the command line describe; without any the default one."""
    space: Space = {}
    for option, form, texts in (
        ("--grid", "KEY=A,B,C", grid),
        ("--range", "KEY=LOW..HIGH or KEY=LOW..HIGH:log", ranges),
        ("--choice", "KEY=A,B,C", choices),
    ):
        for text in texts:
            key, _, values = text.partition("=")
            if not (key and values):
                raise UsageError(f"{option} must be {form}, got {text!r}")
            if key in space:
                raise UsageError(f"{option} {key} is given twice: give each setting once")
            where, now = f"{option} {text}", value_at(base.table(), key)
            space[key] = _range(values, where, now) if option == "--range" else _choices(values, where)
    space = space or default_space(base)
    each: Any
    for key, each in space.items():  # refuse values that are invalid by themselves
        for value in each.choices if isinstance(each, CategoricalDistribution) else (each.low, each.high):
            RunConfig.of(override(base.table(), key, value, REGISTRIES))
    return space


def default_space(base: RunConfig) -> Space:
    """The weights of the method and the learning rate, around the preset's values."""
    values = {key: value_at(base.table(), key) for key in DEFAULT_FACTORS}
    return {
        key: FloatDistribution(values[key] / factor, values[key] * factor, log=True)
        for key, factor in DEFAULT_FACTORS.items()
        if values[key]
    }


def _choices(text: str, where: str) -> BaseDistribution:
    """Choices such as ``0.1,0.3,1`` or ``sgd,adam``."""
    values = parse_value(f"[{text}]")
    if isinstance(values, str):  # words without quotes
        values = [parse_value(word.strip()) for word in text.split(",")]
    plain = all(isinstance(value, str | int | float) for value in values)
    if not (values and plain) or len({*values}) < len(values):
        raise UsageError(f"{where}: must be distinct numbers or words, such as 0.1,0.3,1")
    return CategoricalDistribution(values)


def _range(text: str, where: str, now: Any) -> BaseDistribution:
    """A range such as ``1e-7..1e-3:log``; of integers where the value is one now."""
    if isinstance(now, bool | str):
        raise UsageError(f"{where}: its value is {now!r}, not a number; list values with --choice")
    ends, _, scale = text.partition(":")
    if ".." not in ends:
        raise UsageError(f"{where}: must be two numbers with two dots between, such as 0.1..1")
    low, high = (number(end, where) for end in ends.split("..", 1))
    log = scale == "log"
    if scale not in ("", "log") or not -math.inf < low < high < math.inf or (log and low <= 0):
        raise UsageError(f"{where}: LOW must be below HIGH, and for :log above 0, such as 1e-7..1e-3:log")
    if not isinstance(now, int):
        return FloatDistribution(low, high, log=log)
    if low % 1 or high % 1:
        raise UsageError(f"{where}: must be integers, because the value is one now ({now})")
    return IntDistribution(int(low), int(high), log=log)


def _contains(distribution: Any, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    return isinstance(value, int | float) and distribution.low <= value <= distribution.high
