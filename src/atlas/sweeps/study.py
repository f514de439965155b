"""The study that all workers of a sweep share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import optuna
from optuna import Study
from optuna.distributions import distribution_to_json
from optuna.exceptions import DuplicatedStudyError
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage

from atlas.attacks import Attack
from atlas.config import ConfigDict, differences
from atlas.errors import UsageError
from atlas.evaluation.plan import attack_table
from atlas.sweeps.queue import GridSampler, SearchSampler
from atlas.sweeps.space import Space, grid_points, own_point
from atlas.sweeps.storage import waited_for
from atlas.training import RunConfig

DEFINITION = "sweep"
PRUNE_AFTER_TRIALS, PRUNE_AFTER_EPOCHS = 4, 2
"""A trial is pruned only beside so many that have ended, and so many epochs after the ramp."""
MEASURES = ("threat.", "data", "training.validation.size", "training.validation.attack.")
"""Settings by which trials are scored themselves; the last only where no other attack does that."""


@dataclass(frozen=True)
class Sweep:
    """What is swept, and how: all but the number of trials, which may grow."""

    name: str
    """Of the base preset, or its file."""
    preset: ConfigDict
    """What stands there."""
    base: ConfigDict
    """The same with `--set`."""
    space: Space
    grid: bool
    seed: int = 0
    prune: bool = True
    score: tuple[str, Attack] | None = None
    """The attack that chooses, with its label; None for the validation's own."""

    def __post_init__(self) -> None:
        if self.measures and not self.grid:
            raise UsageError(
                f"a search over {', '.join(self.measures)} would find the weakest attack or the easiest "
                "images, not the best model: trials are scored by it. Set it for all with --set, or list "
                "values with --grid."
            )

    @property
    def measures(self) -> list[str]:
        """What is swept of that by which trials are scored, so that scores do not tell which is better."""
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

    def sampler(self) -> BaseSampler:
        return GridSampler(grid_points(self.space)) if self.grid else SearchSampler(self.seed)

    def pruner(self) -> BasePruner:
        """Steps are epochs after the ramp: see `atlas.sweeps.trial`."""
        return MedianPruner(PRUNE_AFTER_TRIALS, PRUNE_AFTER_EPOCHS) if self.prune else NopPruner()


class _Parts(TypedDict):
    sampler: BaseSampler
    pruner: BasePruner


def join(sweep: Sweep, storage: RDBStorage, folder: Path) -> Study:
    """Make the study, or take part in it if it is the same; its name is the folder's."""
    name, parts = folder.resolve().name, _Parts(sampler=sweep.sampler(), pruner=sweep.pruner())
    with waited_for(folder):
        try:
            study = optuna.create_study(storage=storage, study_name=name, direction="maximize", **parts)
            first = None if sweep.grid else own_point(sweep.space, RunConfig.of(sweep.base))
            if first:
                study.enqueue_trial(dict(first))
        except DuplicatedStudyError:
            study = optuna.load_study(storage=storage, study_name=name, **parts)
        if DEFINITION not in study.user_attrs:
            study.set_user_attr(DEFINITION, sweep.definition())
        _check_same(study.user_attrs[DEFINITION], sweep.definition(), name)
    return study


def _check_same(there: Mapping[str, Any], wanted: Mapping[str, Any], name: str) -> None:
    plain = json.loads(json.dumps(wanted))
    if found := differences(there, plain):
        raise UsageError(
            f"the study {name!r} sweeps something else: {'; '.join(found)}. Give the same options to join "
            "it, or choose another --out for a new one."
        )
