"""Which point a trial tries: the next of a grid, or what Optuna's TPE proposes, reproducibly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from atlas.sweep.slots import slot_of
from atlas.sweep.space import Point

STARTUP = 5
"""Trials by chance before TPE proposes; Optuna's own ten would be most of a short search."""


class GridSampler(BaseSampler):
    """The point of a trial's slot. Optuna's own draws points by chance, and two workers may draw the same."""

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


class SearchSampler(BaseSampler):
    """TPE with randomness by (seed, trial): no two workers draw the same, and a resumed search goes on so."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.inner: BaseSampler = TPESampler(seed=seed)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.inner = TPESampler(seed=(self.seed * 1_000_003 + trial.number) % 2**32, n_startup_trials=STARTUP)
        self.inner.before_trial(study, trial)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self.inner.after_trial(study, trial, state, values)
