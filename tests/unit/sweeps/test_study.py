"""What the command line's words mean as a space."""

from __future__ import annotations

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from atlas import presets
from atlas.errors import UsageError
from atlas.sweeps import study
from atlas.training import RunConfig
from tests.unit.sweeps.runs import small_sweep

BASE = RunConfig.of(presets.load_preset("demo-atlas-1")[1])


def test_words_become_distributions() -> None:
    ranges = ["method.alpha=1e-7..1e-3:log", "training.schedule.ramp_epochs=0..6"]
    choices = ["training.optimizer.kind=sgd,adam", "normalize=true,false"]
    asked = study.space_from_options(
        BASE, ranges=[*ranges, "training.optimizer.lr=1/100..1"], choices=choices
    )
    assert asked == {
        "method.alpha": FloatDistribution(1e-7, 1e-3, log=True),
        "training.schedule.ramp_epochs": IntDistribution(0, 6),
        "training.optimizer.lr": FloatDistribution(0.01, 1.0),
        "training.optimizer.kind": CategoricalDistribution(("sgd", "adam")),
        "normalize": CategoricalDistribution((True, False)),
    }


def test_a_grid_is_the_product() -> None:
    sweep = small_sweep(grid=["method.alpha=1e-6,1e-5", "method.beta=0.1,0.3,1"])
    points = [(p["method.alpha"], p["method.beta"]) for p in sweep.points]
    assert points == [(a, b) for a in (1e-6, 1e-5) for b in (0.1, 0.3, 1)]


def test_without_words_the_methods_weights_and_the_rate_are_searched() -> None:
    assert list(study.space_from_options(BASE)) == ["method.alpha", "method.beta", "training.optimizer.lr"]
    adv = RunConfig.of(presets.load_preset("demo-adv-1")[1])
    lr = adv.training.optimizer.lr
    assert study.space_from_options(adv) == {
        "training.optimizer.lr": FloatDistribution(lr / 10, lr * 10, log=True)
    }


def test_a_search_begins_with_the_presets_values_if_they_are_in_its_space() -> None:
    kind = ["training.optimizer.kind=sgd,adam"]
    inside = small_sweep(ranges=["method.alpha=1e-7..1e-3:log"], choices=kind)
    assert inside.points == [{"method.alpha": 1e-5, "training.optimizer.kind": "sgd"}]
    assert small_sweep(ranges=["method.alpha=1e-4..1e-3"], choices=kind).points == []
    assert small_sweep(choices=["training.optimizer.kind=adam"]).points == []


@pytest.mark.parametrize(
    ("grid", "ranges", "choices", "said"),
    [
        (["method.alpa=1"], [], [], "did you mean 'alpha'"),
        (["method.alpha"], [], [], "must be KEY=A,B,C"),
        (["method.alpha=1,1"], [], [], "distinct"),
        (["method.alpha=[1,2],[3]"], [], [], "numbers or words"),
        (["method.alpha=1", "method.alpha=2"], [], [], "given twice"),
        (["training.optimizer.kind=sgd,sdg"], [], [], "sdg"),
        ([], ["method.alpa=1..2"], [], "did you mean 'alpha'"),
        ([], ["method.alpha=1e-3"], [], "two dots"),
        ([], ["method.alpha=1..0.1"], [], "LOW must be below HIGH"),
        ([], ["method.alpha=0..1:log"], [], "above 0"),
        ([], ["method.alpha=0..1:linear"], [], ":log"),
        ([], ["method.alpha=a..b"], [], "must be a number"),
        ([], ["training.schedule.ramp_epochs=1..2.5"], [], "must be integers"),
        ([], ["training.optimizer.kind=1..2"], [], "--choice"),
        ([], ["method.alpha=1..2"], ["method.alpha=1,2"], "given twice"),
        ([], ["training.optimizer.lr=-1..1"], [], "lr must be > 0 and finite, got -1"),
    ],
)
def test_words_that_make_no_sense_are_refused(
    grid: list[str], ranges: list[str], choices: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said.replace("[", r"\[")):
        study.space_from_options(BASE, grid, ranges, choices)


def test_a_setting_that_stands_at_its_default_can_be_listed() -> None:
    asked = study.space_from_options(BASE, ["training.precision=float32,craft"])
    assert asked == {"training.precision": CategoricalDistribution(("float32", "craft"))}
