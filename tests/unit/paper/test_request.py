"""What a request means: which presets, settings, attacks and images at which scale."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atlas.attacks.suites import suite
from atlas.config import fingerprint
from atlas.errors import UsageError
from atlas.presets import load_preset
from atlas.training import RunConfig
from atlas_paper import paper
from atlas_paper.artefact import ModelRow
from atlas_paper.artefacts import ARTEFACTS
from atlas_paper.jobs import RunSpec, canonical_hash
from atlas_paper.request import Request

MNIST_ROWS = ("jac", "adv-1", "trades-1", "atlas-1", "adv-20", "trades-20", "atlas-20")
CIFAR_ROWS = ("jac", "adv-1", "trades-1", "atlas-1", "adv-10", "trades-10", "atlas-10")


def request(name: str, scale: str = "cpu", **options: object) -> Request:
    return Request(ARTEFACTS[name], scale, **options)  # type: ignore[arg-type]


def preset_hash(name: str, seed: int = 0) -> str:
    table = load_preset(name)[1]
    table["training"]["seed"] = seed
    return fingerprint(RunConfig.of(table).table())


@pytest.mark.parametrize(
    ("name", "scale", "options", "prefix", "rows"),
    [
        ("table1-mnist", "cpu", {}, "mnist-small-", MNIST_ROWS),
        ("table1-mnist", "cpu", {"network": "cnn"}, "mnist-", MNIST_ROWS),
        ("table1-mnist", "paper", {}, "mnist-", MNIST_ROWS),
        ("table1-cifar10", "paper", {}, "cifar10-", CIFAR_ROWS),
        ("table1-cifar100", "paper", {}, "cifar100-", CIFAR_ROWS),
    ],
)
def test_rows_are_the_presets_unchanged(
    name: str, scale: str, options: dict[str, str], prefix: str, rows: tuple[str, ...]
) -> None:
    """So runs of `atlas train PRESET` are found by their hash."""
    asked = request(name, scale, **options)
    assert tuple(row.key for row in asked.rows) == rows
    for row in asked.rows:
        assert asked.run(row, 0).hash == preset_hash(f"{prefix}{row.key}")
        assert asked.run(row, 2).hash == preset_hash(f"{prefix}{row.key}", seed=2)
        assert asked.run(row, 0).command == f"atlas train {prefix}{row.key}"


def test_a_lower_precision_is_that_of_all_trainings() -> None:
    """They are those of `atlas train PRESET --precision auto` on a machine that knows bfloat16."""
    asked = request("table1-mnist", network="cnn", precision="bfloat16-all")
    runs = [job.run for job in asked.jobs]
    assert runs[0].preset == "mnist-natural", "the surrogate"
    for run in runs:
        plain = RunConfig.of(load_preset(run.preset)[1])
        lower = replace(plain.training, precision="bfloat16-all", channels_last="auto", seed=run.seed)
        assert run.config == replace(plain, training=lower)


@pytest.mark.parametrize("scale", ["paper", "cpu"])
@pytest.mark.parametrize("data", ["mnist", "cifar10", "cifar100"])
def test_attacks_have_the_budgets_of_the_suites(scale: str, data: str) -> None:
    asked = request(f"table1-{data}", scale)
    specs = asked.attacks(asked.rows[0])
    tables = {label: table for spec in specs for label, table in spec.attacks.items()}
    assert tables == {**suite("paper", data).attacks, **suite("autoattack").attacks, **suite("rays").attacks}
    assert [spec.label for spec in specs if spec.cascade] == ["AutoAttack"]


def test_numbers_of_images() -> None:
    def images(name: str, scale: str = "cpu", **options: object) -> dict[str, int | None]:
        asked = request(name, scale, **options)
        return {spec.label: spec.n for spec in asked.attacks(asked.rows[0])}

    small, large = images("table1-mnist"), images("table1-mnist", network="cnn")
    assert small == dict.fromkeys(small, 1000) | {"PGD-20": 10_000}
    assert large == small | {"Multi-T": 200, "RayS": 200}
    assert images("table1-cifar10", "paper") == dict.fromkeys(small, None) | {"RayS": 1000}
    asked = request("tradesjac")
    shown = {row.task: asked.columns(row) for row in asked.rows}
    assert set(shown["cifar10"]) - set(shown["cifar100"]) == {"Multi-T"}


def test_a_run_says_how_to_train_it_by_hand() -> None:
    asked = request("atlas-grid")
    run = asked.run(asked.rows[0], 1)
    words = run.command.split()
    assert words[:3] == ["atlas", "train", "cifar10-atlas-1"]
    assert "data=cifar10:6000" in words
    assert "method.alpha=0.0001" in words
    assert words[-2:] == ["--seed", "1"]


def test_a_switch_is_said_as_the_command_line_wants_it() -> None:
    asked = request("collapse")
    (row,) = [row for row in asked.rows if row.key == "mnist-collapse"]
    assert "method.attack.clip_start=true" in asked.run(row, 0).command.split()


def test_a_row_s_own_changes_are_never_dropped() -> None:
    """Those of a scale are, where a preset has no use for them."""
    row = ModelRow("cifar10", "jac", {"training.schedule.ramp_epochs": 5})
    assert request("table1-cifar10").run(row, 0).config.training.schedule.ramp_epochs == 5


def test_scale_cpu_keeps_the_schedule_and_the_method() -> None:
    asked, paper = request("table1-cifar10"), request("table1-cifar10", "paper")
    for row in asked.rows:
        ours, theirs = asked.run(row, 0).config, paper.run(row, 0).config
        assert (ours.method, ours.threat, ours.training.optimizer) == (
            theirs.method,
            theirs.threat,
            theirs.training.optimizer,
        )
        schedule = ours.training.schedule
        assert (schedule.kind, schedule.plateau, schedule.patience) == ("guided", 2, 10)
        assert schedule.ramp_epochs == (0 if row.key == "jac" else 10)


def test_an_objective_in_words_is_the_same_run() -> None:
    """Runs of earlier versions have the attack's objective in their configuration."""
    for name, objective in {"mnist-small-adv-1": "ce", "mnist-small-trades-1": "kl"}.items():
        run = RunSpec(name, {}, 0)
        spelled = RunSpec(name, {"method.attack.objective": objective}, 0)
        assert spelled.hash != run.hash
        assert canonical_hash(spelled.config) == canonical_hash(run.config)
        other = RunSpec(name, {"method.attack.objective": "margin"}, 0)
        assert canonical_hash(other.config) != canonical_hash(run.config)
    assert canonical_hash(RunSpec("mnist-small-jac", {}, 0).config) != canonical_hash(
        RunSpec("mnist-small-jac", {}, 1).config
    )


def test_rows_by_key_and_pattern() -> None:
    assert [row.key for row in request("table1-mnist", only=("adv-1", "*-20")).rows] == [
        "adv-1",
        "adv-20",
        "trades-20",
        "atlas-20",
    ]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("table1-mnist", {"only": ("adv-2",)}, "table1-mnist has no row 'adv-2'; choose from: jac, adv-1"),
        ("table1-mnist", {"precision": "float8"}, "precision 'float8'"),
        ("table1-mnist", {"seeds": 0}, "seeds must be 1 to 10, got 0"),
        ("table1-mnist", {"seeds": 11}, "must be 1 to 10, got 11"),
        ("table1-mnist", {"network": "wrn-28-8"}, "unknown network 'wrn-28-8'"),
        ("table1-cifar10", {"network": "cnn"}, "for MNIST; table1-cifar10 has other data"),
        ("tradesjac", {"version": "tuned"}, "for MNIST"),
        ("collapse", {"version": "tuned"}, "for MNIST"),
        ("collapse", {"seeds": 2}, "collapse shows one seed"),
        ("loss-curves", {"seeds": 3}, "loss-curves shows one seed"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        request(name, **options)


def test_a_tuned_row_without_a_preset_names_it() -> None:
    with pytest.raises(UsageError, match="needs the preset mnist-jac-tuned, which does not exist"):
        request("table1-mnist", version="tuned", network="cnn")


def test_the_command_continues_with_the_same_request() -> None:
    lower = {"precision": "bfloat16-all", "attack_dtype": "bfloat16"}
    asked = request("table1-mnist", network="cnn", seeds=3, only=("*-1",), **lower)
    options = "--network cnn --seeds 3 --precision bfloat16-all --attack-dtype bfloat16 --rows '*-1'"
    assert asked.command == f"atlas reproduce table1-mnist --scale cpu {options}"
    assert asked.name == "table1-mnist-cpu-cnn-3-seeds-trained-bfloat16-all-attacked-bfloat16"
    assert request("table1-mnist", network="cnn").name == "table1-mnist-cpu-cnn"
    assert request("table1-mnist", network="cnn-small").name == "table1-mnist-cpu"


def test_the_step_sizes_are_those_that_the_paper_names() -> None:
    changes = [row.changes for row in ARTEFACTS["step-size"].rows]
    for key, name in {
        "method.attack.relative_step": "step_sizes",
        "training.schedule.plateau": "plateaus",
    }.items():
        assert sorted({change[key] for change in changes}) == paper.text(name)
