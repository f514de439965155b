"""A worker's way through a sweep, on runs that take no time."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import optuna
import pytest

from atlas import presets
from atlas.config import fingerprint
from atlas.errors import DataError, DiskError, NumericError, UsageError
from atlas.sweeps.worker import named_attack
from atlas.training import RunConfig, load_config
from tests.unit.sweeps.runs import PRESET, fake_training, run, small_sweep

RAMP = RunConfig.of(presets.load_preset(PRESET)[1]).training.schedule.ramp_epochs
EPOCHS = RAMP + 1


def rises_with_alpha(config: RunConfig) -> list[float]:
    """Better where alpha is larger; the same epochs for all."""
    level = 1 + math.log10(config.method.alpha) / 10  # type: ignore[attr-defined]
    return [level * (epoch + 1) / EPOCHS for epoch in range(EPOCHS)]


def test_a_grid_is_tabled_best_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_training(monkeypatch, rises_with_alpha, drawn=True)
    found, said = run(small_sweep(grid=["method.alpha=1e-6,1e-4", "method.beta=0.1,1"]), tmp_path / "s")
    assert [row.values["method.alpha"] for row in found] == [1e-4, 1e-4, 1e-6, 1e-6]
    assert found[0].score == pytest.approx(0.6)
    with (tmp_path / "s/table.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(row["method.alpha"]) for row in table] == [1e-4, 1e-4, 1e-6, 1e-6]
    trial = load_config(tmp_path / "s/trials" / f"{found[0].number + 1:03d}")
    assert table[0]["config"] == fingerprint(trial.table())
    assert json.loads((tmp_path / "s/table.json").read_text())["rows"][0][1] == "done"
    assert (tmp_path / "s/table.md").read_text().count("\n| ") == 6
    assert all((tmp_path / "s" / f"figure.{kind}").stat().st_size > 1000 for kind in ("pdf", "svg", "png"))
    assert "best so far" in said[-1]


def test_the_best_is_a_preset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_training(monkeypatch, rises_with_alpha)
    run(small_sweep(grid=["method.alpha=1e-6,1e-4"]), tmp_path / "s")
    text = (tmp_path / "s/best.toml").read_text()
    assert text.startswith("# demo-atlas-1, trial 2 of 2: 60.00% under the validation attack\n")
    assert "ended so far" not in text
    config = RunConfig.of(presets.load_preset(str(tmp_path / "s/best.toml"))[1])
    assert config == load_config(tmp_path / "s/trials/002")


def test_a_search_begins_with_the_preset_and_stays_in_its_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained = fake_training(monkeypatch, rises_with_alpha)
    words = {
        "ranges": ["method.alpha=1e-7..1e-3:log", "training.schedule.ramp_epochs=1..8"],
        "choices": ["training.optimizer.kind=sgd,adam"],
    }
    run(small_sweep(**words, prune=False), tmp_path / "s", trials=9)
    alphas = [config.method.alpha for config in trained]  # type: ignore[attr-defined]
    assert alphas[0] == 1e-5
    assert len(set(alphas)) == 9
    assert all(1e-7 <= alpha <= 1e-3 for alpha in alphas)
    assert {config.training.optimizer.kind for config in trained} == {"sgd", "adam"}
    assert all(isinstance(config.training.schedule.ramp_epochs, int) for config in trained)


def test_the_seed_decides_a_search_and_stopping_between_trials_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def searched(name: str, *totals: int, seed: int = 0) -> list[RunConfig]:
        trained = fake_training(monkeypatch, rises_with_alpha)
        for total in totals:
            run(small_sweep(ranges=["method.alpha=1e-7..1e-3:log"], seed=seed), tmp_path / name, total)
        return trained

    whole = searched("whole", 7)
    assert searched("parts", 3, 7) == whole
    assert searched("other", 3, seed=1)[1:] != whole[1:3]


def test_the_number_of_trials_is_a_total(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trained = fake_training(monkeypatch, rises_with_alpha)
    sweep = small_sweep(ranges=["method.alpha=1e-7..1e-3:log"])
    assert len(run(sweep, tmp_path / "s", 2)[0]) == 2
    assert len(run(sweep, tmp_path / "s", 2)[0]) == 2
    assert len(run(sweep, tmp_path / "s", 3)[0]) == 3
    assert len(trained) == 3


def test_a_poor_trial_is_pruned_but_not_before_the_ramp_is_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good = [0.5 + 0.01 * epoch for epoch in range(16)]
    curves = iter([good] * 5 + [[0.1] * 16])
    fake_training(monkeypatch, lambda config: next(curves))
    found, said = run(small_sweep(ranges=["method.alpha=1e-7..1e-3:log"]), tmp_path / "s", 6)
    (pruned,) = [row for row in found if row.state == "pruned"]
    assert pruned.number == 5
    assert RAMP < pruned.epochs < 16
    assert pruned.score is None
    assert found[-1] is pruned
    assert (tmp_path / "s/trials/006/metrics.jsonl").exists()
    assert "pruned: behind the median" in said[-1]


def test_a_trial_that_fails_is_recorded_and_the_sweep_continues(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def curve(config: RunConfig) -> list[object]:
        fails = config.method.alpha > 1e-5  # type: ignore[attr-defined]
        return [0.5, NumericError("not finite in epoch 2")] if fails else [0.3, 0.9, 0.1]

    fake_training(monkeypatch, curve)  # type: ignore[arg-type]
    sweep = small_sweep(grid=["method.alpha=1e-4,1e-6"])
    found, _ = run(sweep, tmp_path / "s")
    assert [row.state for row in found] == ["done", "failed"]
    assert found[0].note == "collapse in epoch 3"
    assert found[0].score == 0.9
    assert found[1].note == "not finite in epoch 2"
    assert found[1].epochs == 1
    text = (tmp_path / "s/table.md").read_text()
    assert "not finite in epoch 2" in text
    assert "collapse in epoch 3" in text


def test_values_that_do_not_go_together_are_a_failed_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_training(monkeypatch, rises_with_alpha)
    both = ["training.schedule.epochs=10,20", "training.schedule.ramp_epochs=5,15"]
    found, _ = run(small_sweep(grid=both), tmp_path / "s")
    assert [row.state for row in found] == ["done"] * 3 + ["failed"]
    assert "never reach its full value" in found[-1].note


def test_a_search_learns_to_keep_away_from_failures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def curve(config: RunConfig) -> list[object]:
        fails = config.training.optimizer.kind == "adam"
        return [NumericError("not finite")] if fails else [0.5]

    trained = fake_training(monkeypatch, curve)  # type: ignore[arg-type]
    sweep = small_sweep(choices=["training.optimizer.kind=sgd,adam"], ranges=["method.alpha=1e-7..1e-3:log"])
    run(sweep, tmp_path / "s", 24)
    late = [config.training.optimizer.kind for config in trained[8:]]
    assert late.count("sgd") > 2 * late.count("adam")


def test_a_fault_of_the_machine_ends_the_worker_and_the_trial_is_taken_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sweep = small_sweep(grid=["method.alpha=1e-5,1e-4"])
    fake_training(monkeypatch, lambda config: [DiskError("the disk is full")])  # type: ignore[list-item]
    with pytest.raises(DiskError):
        run(sweep, tmp_path / "s")
    trained = fake_training(monkeypatch, rises_with_alpha)
    found, _ = run(sweep, tmp_path / "s")
    assert [config.method.alpha for config in trained] == [1e-5, 1e-4]  # type: ignore[attr-defined]
    assert len(found) == 2


def test_a_trial_that_kills_every_worker_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Killed(BaseException):
        """As far as the study can see, a death without a word."""

    sweep = small_sweep(grid=["method.alpha=1e-5"])
    fake_training(monkeypatch, lambda config: [Killed()])  # type: ignore[list-item]
    for _ in range(5):
        with pytest.raises(Killed):
            run(sweep, tmp_path / "s")
    found, _ = run(sweep, tmp_path / "s")
    assert [row.state for row in found] == ["failed"]
    assert found[0].note == "5 workers died at it"


def test_a_trial_that_another_worker_has_finished_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As after ten minutes in which this worker was stopped and shared no folder with the others."""

    def curve(config: RunConfig) -> list[float]:
        study = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path / 's/study.db'}")
        study.tell(0, 0.9)
        return [0.5] * EPOCHS

    trained = fake_training(monkeypatch, curve)
    _, said = run(small_sweep(grid=["method.alpha=1e-6"]), tmp_path / "s")
    assert len(trained) == 1
    assert "was given to another worker" in said[-1]


def test_a_study_of_another_space_is_refused_with_what_differs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained = fake_training(monkeypatch, rises_with_alpha)
    run(small_sweep(grid=["method.alpha=1e-5"]), tmp_path / "s")
    for other, said in [
        (small_sweep(grid=["method.alpha=1e-5,1e-4"]), "space.method.alpha"),
        (small_sweep(grid=["method.beta=1"]), "space.method.beta"),
        (small_sweep(ranges=["method.alpha=1e-5..1"]), "kind: 'grid' -> 'search'"),
        (small_sweep(grid=["method.alpha=1e-5"], seed=1), "seed: 0 -> 1"),
    ]:
        with pytest.raises(UsageError, match=said):
            run(other, tmp_path / "s", 1)
    assert len(trained) == 1


def test_optuna_reads_the_study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its dashboard and plots work on what we leave."""
    fake_training(monkeypatch, rises_with_alpha)
    run(small_sweep(grid=["method.alpha=1e-6,1e-4"]), tmp_path / "s")
    study = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path / 's/study.db'}")
    assert study.best_params == {"method.alpha": 1e-4}
    assert study.best_value == pytest.approx(0.6)
    assert len(study.best_trial.intermediate_values) == EPOCHS - (RAMP - 1)


def test_what_trials_are_scored_by_is_not_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The smallest eps would win."""
    fake_training(monkeypatch, lambda config: [1 - config.threat.eps])
    with pytest.raises(UsageError, match=r"search over threat\.eps would find the weakest attack"):
        small_sweep(ranges=["threat.eps=0.1..0.3"])
    with pytest.raises(UsageError, match=r"training\.validation\.attack\.steps"):
        small_sweep(ranges=["training.validation.attack.steps=1..9"])
    for key, values in {"data": "mnist-mini,mnist-mini:100", "training.validation.size": "5,20"}.items():
        with pytest.raises(UsageError, match=f"search over {key} would find .* the easiest images"):
            small_sweep(choices=[f"{key}={values}"])
    other = named_attack("un-t", "mnist")
    assert not small_sweep(ranges=["training.validation.attack.steps=1..9"], score=other).measures
    _, said = run(small_sweep(grid=["threat.eps=0.1,0.3"]), tmp_path / "s")
    assert "trials are scored by threat.eps too" in said[1]
    assert "cannot be compared" in (tmp_path / "s/table.md").read_text()


def test_yes_and_no_are_words_in_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_training(monkeypatch, lambda config: [0.1])
    run(small_sweep(grid=["training.optimizer.nesterov=true,false"]), tmp_path / "s")
    text = (tmp_path / "s/table.md").read_text()
    assert "| 1 | done | True |" in text
    assert "| 2 | done | False |" in text


def test_a_value_that_no_training_takes_fails_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(config: RunConfig, root: Path | None) -> range:
        if config.training.validation.size == 61:
            raise DataError("61 of 60 images")
        return range(100)

    def unknown_model(config: RunConfig) -> list[float | Exception]:
        return [UsageError("no such model")] if config.model == "typo" else [0.5]  # type: ignore[list-item]

    fake_training(monkeypatch, unknown_model)  # type: ignore[arg-type]
    monkeypatch.setattr("atlas.sweeps.worker.held_out", refused)
    found, _ = run(small_sweep(grid=["training.validation.size=61,20"]), tmp_path / "size")
    assert [(row.state, row.note) for row in found] == [
        ("done", ""),
        ("failed", "61 of 60 images"),
    ]
    found, _ = run(small_sweep(grid=["model=typo,cnn-small"]), tmp_path / "model")
    assert [(row.state, row.note) for row in found] == [
        ("done", ""),
        ("failed", "no such model"),
    ]


def test_what_is_wrong_for_all_ends_the_worker_and_no_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_training(monkeypatch, lambda config: [UsageError("no GPU")])  # type: ignore[list-item]
    sweep = small_sweep(grid=["method.alpha=1e-6,1e-4"])
    with pytest.raises(UsageError, match="no GPU"):
        run(sweep, tmp_path / "s")
    fake_training(monkeypatch, lambda config: [0.5])
    assert [row.state for row in run(sweep, tmp_path / "s")[0]] == ["done", "done"]
