"""What was asked for: an artefact, how much of it, and which trainings and attacks that means."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any, get_args

from atlas import presets
from atlas.attacks.model_variants import DTYPES
from atlas.attacks.suites import TRANSFER, suite
from atlas.errors import UsageError, choose
from atlas.training.precision import Precision
from atlas_paper.artefact import Artefact, ModelRow
from atlas_paper.cells import DERIVED, MOST_SEEDS, TIME
from atlas_paper.jobs import AttackSpec, Job, RunSpec

SCALES = tomllib.loads((resources.files("atlas_paper") / "scales.toml").read_text("utf-8"))
VERSIONS = {"written": "as written", "tuned": "tuned"}
NETWORKS = ("cnn", "cnn-small")
"""The networks that MNIST's rows can have."""
SURROGATE, SURROGATE_SEED = "natural", 99
"""The black box attack's surrogate is a model of the same network, trained without an adversary from another
seed than any row: the paper does not say which it takes."""
SUITES = {
    **dict.fromkeys(("black box", "PGD-20", "PGD-1000", "Un-T", "Multi-T"), "paper"),
    **{"AutoAttack": "autoattack", "RayS": "rays"},
}
"""The suite that has the attack of a column."""
OPTIONS = {
    "network": "{}",
    "version": "{}",
    "seeds": "{}-seeds",
    "precision": "trained-{}",
    "attack_dtype": "attacked-{}",
}
"""What each adds to the name of the folder of results where it is not the default."""


@dataclass(frozen=True)
class Request:
    """One artefact at one scale."""

    artefact: Artefact
    scale: str = "cpu"
    network: str = ""
    """Of MNIST; "" for the scale's default."""
    version: str = "written"
    seeds: int = 1
    only: tuple[str, ...] = ()
    """Keys of rows, or patterns of them; all rows where empty."""
    attack_dtype: str = "float32"
    precision: str = "float32"
    """Of all trainings; a lower one comes with channels last where that is fast."""

    def __post_init__(self) -> None:
        choose("scale", self.scale, SCALES)
        choose("version", self.version, VERSIONS)
        choose("network", self.network or NETWORKS[0], dict.fromkeys(NETWORKS))
        choose("attack dtype", self.attack_dtype, DTYPES)
        choose("precision", self.precision, dict.fromkeys(get_args(Precision)))
        name = self.artefact.name
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise UsageError(f"seeds must be 1 to {MOST_SEEDS}, got {self.seeds}")
        if self.seeds > 1 and not self.artefact.columns:
            raise UsageError(f"{name} shows one seed; omit --seeds")
        if not self.of_mnist and (self.network or self.version != "written"):
            raise UsageError(f"--network and --version are for MNIST; {name} has other data")
        for pattern in self.only:
            if not any(fnmatchcase(row.key, pattern) for row in self.scaled_rows):
                keys = ", ".join(row.key for row in self.scaled_rows)
                raise UsageError(f"{name} has no row {pattern!r}; choose from: {keys}")
        for row in self.scaled_rows:
            if (preset := self._preset(row)) not in presets.names():
                raise UsageError(f"{name} needs the preset {preset}, which does not exist; omit --version")

    @property
    def scaled_rows(self) -> list[ModelRow]:
        """The artefact's rows at this scale."""
        return [row for row in self.artefact.rows if row.smoke or self.scale != "smoke"]

    @property
    def rows(self) -> list[ModelRow]:
        """The rows that were asked for."""
        patterns = self.only or ("*",)
        return [row for row in self.scaled_rows if any(fnmatchcase(row.key, p) for p in patterns)]

    @property
    def of_mnist(self) -> bool:
        return {row.task for row in self.artefact.rows} == {"mnist"}

    def row_name(self, row: ModelRow) -> str:
        """The row's label, with the data set where there are several."""
        return f"{row.label}, {row.task}" if len({each.task for each in self.scaled_rows}) > 1 else row.label

    def setting(self, task: str) -> dict[str, Any]:
        """How the data set is treated at this scale, as in `scales.toml`."""
        parts = SCALES[self.scale]
        table, common = parts["mnist" if task == "mnist" else "cifar"], parts.get("all", {})
        changes = {**common.get("changes", {}), **table.get("changes", {})}
        network = self.network or table.get("network", "")
        return {
            "network": network,
            "words": table["words"].format(network=network),
            "images": table.get(f"images_of_{network}", table["images"]),
            "changes": {k: v.format(task=task) if isinstance(v, str) else v for k, v in changes.items()},
            "limits": common.get("limits", {}),
        }

    def _preset(self, row: ModelRow) -> str:
        small = "small-" if self.setting(row.task)["network"] == "cnn-small" else ""
        tuned = "-tuned" if self.version == "tuned" and row.preset != SURROGATE else ""
        return f"{row.task}-{small}{row.preset}{tuned}"

    def run(self, row: ModelRow, seed: int) -> RunSpec:
        preset = self._preset(row)
        changes = {**_applicable(self.setting(row.task)["changes"], preset), **row.changes}
        if self.precision != "float32":
            changes |= {"training.precision": self.precision, "training.channels_last": "auto"}
        return RunSpec(preset, changes, seed)

    def columns(self, row: ModelRow) -> list[str]:
        """The columns in which a row has a cell: a data set may lack an attack."""
        made = {*DERIVED, *(spec.label for spec in self.attacks(row))}
        return [label for label in self.artefact.columns.get(row.task, ()) if label in made]

    def attacks(self, row: ModelRow) -> tuple[AttackSpec, ...]:
        """The attacks on a row, in the order in which they are made."""
        columns = self.artefact.columns.get(row.task, ())
        specs = [self._attack(label, row.task) for label in columns if label not in DERIVED]
        return tuple(spec for spec in specs if spec.attacks)

    def _attack(self, label: str, task: str) -> AttackSpec:
        setting, chosen = self.setting(task), suite(choose("column", label, SUITES), task)
        tables = {k: _limited(table, setting["limits"]) for k, table in chosen.attacks.items()}
        if chosen.name == "paper":  # where the attack's label may be followed by its budget
            tables = {k: table for k, table in tables.items() if f"{k} ".startswith(f"{label} ")}
        transfer = any(table["name"] == TRANSFER for table in tables.values())
        usual = setting["images"].get("other")
        n = setting["images"].get(label, usual)
        return AttackSpec(
            label,
            chosen.name,
            tables,
            n,
            random=n is not None and self.scale == "paper",
            cascade=chosen.cascade,
            dtype=self.attack_dtype,
            surrogate=self.run(ModelRow(task, SURROGATE), SURROGATE_SEED) if transfer else None,
            few=n is not None and (usual is None or n < usual),
        )

    def job(self, row: ModelRow, seed: int) -> Job:
        timed = seed == 0 and TIME in self.columns(row)
        steps = (1 if self.scale == "smoke" else 5) if timed else 0
        name = f"{row.label}, {row.task}, seed {seed}"
        return Job(name, self.run(row, seed), self.attacks(row), steps, self.command)

    @property
    def jobs(self) -> list[Job]:
        """All that was asked for, surrogates first."""
        jobs = [self.job(row, seed) for seed in range(self.seeds) for row in self.rows]
        specs = {
            spec.surrogate.hash: spec.surrogate for job in jobs for spec in job.attacks if spec.surrogate
        }
        surrogates = [Job(f"surrogate, {spec.name}", spec, (), 0, self.command) for spec in specs.values()]
        return [*surrogates, *jobs]

    @property
    def _options(self) -> dict[str, Any]:
        """The options that are not the default."""
        default = {each.name: each.default for each in fields(self)}
        return {name: given for name in OPTIONS if (given := getattr(self, name)) != default[name]}

    @property
    def name(self) -> str:
        """Of the folder of its results."""
        options = self._options
        if options.get("network") == SCALES[self.scale]["mnist"]["network"]:
            del options["network"]
        parts = [OPTIONS[key].format(value) for key, value in options.items()]
        return "-".join([self.artefact.name, self.scale, *parts])

    @property
    def command(self) -> str:
        """The command that makes or resumes it, without the options that name folders."""
        options = [f"--{key.replace('_', '-')} {value}" for key, value in self._options.items()]
        rows = [f"--rows {shlex.quote(key)}" for key in self.only]
        return " ".join(["atlas reproduce", self.artefact.name, f"--scale {self.scale}", *options, *rows])

    @property
    def title(self) -> str:
        """What it is of; on MNIST with the network, which may be one of two."""
        if not self.of_mnist:
            return f"{self.artefact.of}, scale {self.scale}"
        network = self.setting("mnist")["network"]
        return f"{self.artefact.of}, {network}, scale {self.scale}, {VERSIONS[self.version]}"


def _applicable(changes: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The changes that apply to the preset: not every method has several steps, or a growing eps."""
    table = presets.load_preset(name)[1]
    schedule = table.get("training", {}).get("schedule", {})
    useless = {
        "method.attack.steps": "steps" not in table.get("method", {}).get("attack", {}),
        "training.schedule.ramp_epochs": schedule.get("ramp_epochs") == 0,
        "threat.eps": table.get("threat", {}).get("eps") == 0,
    }
    return {key: value for key, value in changes.items() if not useless.get(key)}


def _limited(table: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
    """The attack's table within the limits."""
    short: dict[str, Any] = {k: min(table[k], most) for k, most in limits.items() if k in table}
    inner = {k: _limited(v, limits) for k, v in table.items() if isinstance(v, Mapping)}
    return {**table, **short, **inner}
