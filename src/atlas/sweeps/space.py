"""What is swept: the values that a setting may take, as Optuna's distributions by dotted key."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from atlas.config import ConfigDict, number, override
from atlas.errors import UsageError, unknown
from atlas.training import RunConfig
from atlas.training.settings import REGISTRIES

Space = dict[str, BaseDistribution]
Point = Mapping[str, Any]
"""A value for each key of a space."""

DEFAULT_FACTORS = {"method.alpha": 100.0, "method.beta": 10.0, "training.optimizer.lr": 10.0}
"""The space where none is given: from the preset's value over this to its value times this, by logarithm.
alpha's scale is known least: App. F tries it over orders of magnitude, beta and the rate over one or two."""


def asked_for(base: RunConfig, grid: Sequence[str], ranged: Sequence[str], choices: Sequence[str]) -> Space:
    """The space that the command line asks for; without any words the default one."""
    space = {**listed(grid, "--grid"), **ranges(ranged, base)}
    for key, distribution in listed(choices, "--choice").items():
        _add(space, key, distribution, "--choice")
    space = space or default(base)
    check(space, base.table())
    return space


def listed(texts: Iterable[str], option: str) -> Space:
    """Choices from texts such as ``method.beta=0.1,0.3,1`` or ``training.optimizer.kind=sgd,adam``."""
    space: Space = {}
    for text in texts:
        key, words = _pair(text, option, "KEY=A,B,C")
        values = _values(words)
        plain = all(isinstance(value, str | int | float) for value in values)
        if not (values and plain) or len({*values}) < len(values):
            raise UsageError(f"{option} {text}: wanted different numbers or words, such as 0.1,0.3,1")
        _add(space, key, CategoricalDistribution(values), option)
    return space


def ranges(texts: Iterable[str], base: RunConfig) -> Space:
    """Ranges from texts such as ``method.alpha=1e-7..1e-3:log``; whole numbers where the setting is one."""
    space: Space = {}
    for text in texts:
        key, words = _pair(text, "--range", "KEY=LOW..HIGH or KEY=LOW..HIGH:log")
        ends, _, scale = words.partition(":")
        low, high = (number(end, f"--range {key}") for end in _ends(ends, text))
        log = scale == "log"
        if scale not in ("", "log") or not -math.inf < low < high < math.inf or (log and low <= 0):
            raise UsageError(
                f"--range {text}: wanted LOW below HIGH, and for :log both above 0, such as 1e-7..1e-3:log"
            )
        _add(space, key, _range(key, low, high, log, setting(base.table(), key)), "--range")
    return space


def default(base: RunConfig) -> Space:
    """The weights of the method and the learning rate, around the preset's own values."""
    space: Space = {}
    for key, factor in DEFAULT_FACTORS.items():
        value = setting(base.table(), key, None)
        if value:
            space[key] = FloatDistribution(value / factor, value * factor, log=True)
    return space


def grid_points(space: Space) -> list[Point]:
    """All combinations, the last key going round first."""
    choices = [d.choices for d in space.values() if isinstance(d, CategoricalDistribution)]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*choices)]


def own_point(space: Space, base: RunConfig) -> Point | None:
    """The preset's own values, where all of them lie in the space."""
    values = {key: setting(base.table(), key, None) for key in space}
    inside = all(_contains(distribution, values[key]) for key, distribution in space.items())
    return values if inside else None


def _contains(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return isinstance(value, int | float) and distribution.low <= value <= distribution.high


def check(space: Space, base: ConfigDict) -> None:
    """Refuse a space in which a setting alone makes the configuration impossible."""
    for key, distribution in space.items():
        if isinstance(distribution, CategoricalDistribution):
            values: Sequence[Any] = distribution.choices
        else:
            assert isinstance(distribution, FloatDistribution | IntDistribution)
            values = (distribution.low, distribution.high)
        for value in values:
            RunConfig.of(override(base, key, value, REGISTRIES))


_MISSING: Any = object()


def setting(table: Mapping[str, Any], key: str, otherwise: Any = _MISSING) -> Any:
    """The value at a dotted key."""
    here: Any = table
    for part in key.split("."):
        if not isinstance(here, Mapping) or part not in here:
            if otherwise is not _MISSING:
                return otherwise
            raise unknown("setting", key, _keys(table))
        here = here[part]
    return here


def _keys(table: Mapping[str, Any], where: str = "") -> list[str]:
    found: list[str] = []
    for key, value in table.items():
        found += _keys(value, f"{where}{key}.") if isinstance(value, Mapping) else [f"{where}{key}"]
    return found


def _pair(text: str, option: str, wanted: str) -> tuple[str, str]:
    key, equals, words = text.partition("=")
    if not (key and equals and words):
        raise UsageError(f"{option} got {text!r}; wanted {wanted}")
    return key, words


def _values(words: str) -> list[Any]:
    """Values with commas between them, as TOML where they are TOML and as words where they are not."""
    try:
        return list(tomllib.loads(f"values = [{words}]")["values"])
    except tomllib.TOMLDecodeError:
        return [_value(word.strip()) for word in words.split(",")]


def _value(word: str) -> Any:
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word


def _ends(words: str, text: str) -> tuple[str, str]:
    low, dots, high = words.partition("..")
    if not dots:
        raise UsageError(f"--range {text}: wanted two numbers with two dots between, such as 0.1..1")
    return low, high


def _range(key: str, low: float, high: float, log: bool, now: Any) -> BaseDistribution:
    if isinstance(now, bool) or not isinstance(now, int | float):
        raise UsageError(f"--range {key}: its value is {now!r}, not a number; list values with --choice")
    if not isinstance(now, int):
        return FloatDistribution(low, high, log=log)
    if low % 1 or high % 1:
        raise UsageError(f"--range {key}={low}..{high}: wanted whole numbers, as {now} is")
    return IntDistribution(int(low), int(high), log=log)


def _add(space: Space, key: str, distribution: BaseDistribution, option: str) -> None:
    if key in space:
        raise UsageError(f"{option} {key} is given twice; wanted each setting once")
    space[key] = distribution
