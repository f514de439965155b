"""What a sweep is: a preset, the values that its settings may take, and how they are chosen."""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna import Study
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.exceptions import DuplicatedStudyError
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from atlas.attacks import Attack
from atlas.config import ConfigDict, differences, number, override
from atlas.errors import UsageError, unknown
from atlas.evaluation.plan import attack_table
from atlas.sweeps.queue import Space, slot_of, wait_for_lock
from atlas.training import RunConfig
from atlas.training.settings import REGISTRIES

Point = Mapping[str, Any]
"""A value for each key of a space."""
DEFINITION = "sweep"
PRUNE_AFTER_TRIALS, PRUNE_AFTER_EPOCHS = 4, 2
"""A trial is pruned only after so many others have ended, and so many epochs after the ramp."""
MEASURES = ("threat.", "data", "training.validation.size", "training.validation.attack.")
"""Settings by which trials are scored; the last only without a score attack."""
STARTUP = 5
"""Random trials before TPE proposes; Optuna's default of ten would be most of a short search."""
DEFAULT_FACTORS = {"method.alpha": 100.0, "method.beta": 10.0, "training.optimizer.lr": 10.0}
"""The default space: from the preset's value divided by this to its value times this, log-uniform. alpha's
scale is known least: App. F tries it over orders of magnitude, beta and the rate over one or two."""


@dataclass(frozen=True)
class Sweep:
    """What is swept, and how; not the number of trials, which may grow."""

    name: str
    """The base preset's name or file."""
    preset: ConfigDict
    """Its table."""
    base: ConfigDict
    """The same with `--set`."""
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
        return [
            key for key in self.space if key.startswith(MEASURES if self.score is None else MEASURES[:-1])
        ]

    def definition(self) -> dict[str, Any]:
        """What workers that join must agree on."""
        return {
            "base": RunConfig.of(self.base).table(),
            "space": {key: json.loads(distribution_to_json(d)) for key, d in self.space.items()},
            "kind": "grid" if self.grid else "search",
            "seed": self.seed,
            "prune": self.prune,
            "score": None if self.score is None else attack_table(self.score[1]),
        }

    @property
    def score_label(self) -> str:
        return "the validation attack" if self.score is None else self.score[0]


def join(sweep: Sweep, storage: RDBStorage, folder: Path) -> Study:
    """Create the study, or join it if it is the same; its name is the folder's."""
    name = folder.resolve().name
    parts: dict[str, Any] = {
        "sampler": GridSampler(grid_points(sweep.space)) if sweep.grid else SearchSampler(sweep.seed),
        # Its steps are epochs after the ramp.
        "pruner": MedianPruner(PRUNE_AFTER_TRIALS, PRUNE_AFTER_EPOCHS) if sweep.prune else NopPruner(),
    }
    with wait_for_lock(folder):
        try:
            study = optuna.create_study(storage=storage, study_name=name, direction="maximize", **parts)
            first = None if sweep.grid else preset_point(sweep.space, RunConfig.of(sweep.base))
            if first:
                study.enqueue_trial(dict(first))
        except DuplicatedStudyError:
            study = optuna.load_study(storage=storage, study_name=name, **parts)
        if DEFINITION not in study.user_attrs:
            study.set_user_attr(DEFINITION, sweep.definition())
        if found := differences(study.user_attrs[DEFINITION], json.loads(json.dumps(sweep.definition()))):
            raise UsageError(
                f"the study {name!r} sweeps something else: {'; '.join(found)}. Give the same options to "
                "join it, or choose another --out for a new one."
            )
    return study


class GridSampler(BaseSampler):
    """The point of a trial's slot. With Optuna's own sampler two workers may draw the same point."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        slot = slot_of(trial, study.get_trials(deepcopy=False))
        return self.points[slot % len(self.points)][param_name]  # beyond the last: a trial that is dropped


class SearchSampler(TPESampler):
    """TPE seeded by (seed, trial): no two workers draw the same, and a resumed search repeats its points."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self.seed = seed

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        super().__init__(seed=(self.seed * 1_000_003 + trial.number) % 2**32, n_startup_trials=STARTUP)
        super().before_trial(study, trial)


def space_from_options(
    base: RunConfig, grid: Sequence[str], ranged: Sequence[str], choices: Sequence[str]
) -> Space:
    """The space that the options of the command line describe; without any the default one."""
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
            raise UsageError(f"{option} {text}: must be distinct numbers or words, such as 0.1,0.3,1")
        _add(space, key, CategoricalDistribution(values), option)
    return space


def ranges(texts: Iterable[str], base: RunConfig) -> Space:
    """Ranges from texts such as ``method.alpha=1e-7..1e-3:log``; whole numbers where the setting is one."""
    space: Space = {}
    for text in texts:
        key, words = _pair(text, "--range", "KEY=LOW..HIGH or KEY=LOW..HIGH:log")
        ends, _, scale = words.partition(":")
        if ".." not in ends:
            raise UsageError(f"--range {text}: must be two numbers with two dots between, such as 0.1..1")
        low, high = (number(end, f"--range {key}") for end in ends.split("..", 1))
        log = scale == "log"
        if scale not in ("", "log") or not -math.inf < low < high < math.inf or (log and low <= 0):
            raise UsageError(
                f"--range {text}: LOW must be below HIGH, and for :log above 0, such as 1e-7..1e-3:log"
            )
        _add(space, key, _range(key, low, high, log, setting(base.table(), key)), "--range")
    return space


def default(base: RunConfig) -> Space:
    """The weights of the method and the learning rate, around the preset's values."""
    space: Space = {}
    for key, factor in DEFAULT_FACTORS.items():
        value = setting(base.table(), key, None)
        if value:
            space[key] = FloatDistribution(value / factor, value * factor, log=True)
    return space


def grid_points(space: Space) -> list[Point]:
    """All combinations; the last key varies fastest."""
    choices = [d.choices for d in space.values() if isinstance(d, CategoricalDistribution)]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*choices)]


def preset_point(space: Space, base: RunConfig) -> Point | None:
    """The preset's values, if all of them lie in the space."""
    values = {key: setting(base.table(), key, None) for key in space}
    inside = all(_contains(distribution, values[key]) for key, distribution in space.items())
    return values if inside else None


def _contains(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return isinstance(value, int | float) and distribution.low <= value <= distribution.high


def check(space: Space, base: ConfigDict) -> None:
    """Refuse a space in which one setting alone makes the configuration invalid."""
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


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    key, equals, words = text.partition("=")
    if not (key and equals and words):
        raise UsageError(f"{option} must be {form}, got {text!r}")
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


def _range(key: str, low: float, high: float, log: bool, now: Any) -> BaseDistribution:
    if isinstance(now, bool) or not isinstance(now, int | float):
        raise UsageError(f"--range {key}: its value is {now!r}, not a number; list values with --choice")
    if not isinstance(now, int):
        return FloatDistribution(low, high, log=log)
    if low % 1 or high % 1:
        raise UsageError(f"--range {key}={low}..{high}: must be integers, because {key} is one ({now})")
    return IntDistribution(int(low), int(high), log=log)


def _add(space: Space, key: str, distribution: BaseDistribution, option: str) -> None:
    if key in space:
        raise UsageError(f"{option} {key} is given twice: give each setting once")
    space[key] = distribution
