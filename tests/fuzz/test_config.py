"""Whatever a configuration file, a run's config.json or --set says: a configuration, or an error of ours."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib import resources
from pathlib import Path

from hypothesis import strategies as st

from atlas.cli.train import setting
from atlas.config import fingerprint, override
from atlas.errors import AtlasError
from atlas.presets import load_preset
from atlas.training import RunConfig, load_config
from tests.fuzz.fuzzing import Changes, changed, changes, each_size, fuzz

PRESETS = ["mnist-quick-atlas-1", "cifar10-trades-10", "mnist-jac", "demo-adv-1"]
OWN = b"""
extends = "mnist-quick-atlas-1"
data = "mine.npz"
model = "my.module:network"
[method]
name = "trades"
beta = 1e-2
attack = { name = "pgd", steps = 10, relative_step = 0.25 }
[training.schedule]
milestones = [10, 20.5]
"""
FILES = [OWN] + [(resources.files("atlas.presets") / f"{n}.toml").read_bytes() for n in PRESETS]
TABLES = [RunConfig.of(load_preset(name)[1]).table() for name in PRESETS]
keys = st.sampled_from(
    [
        *("method", "method.name", "method.attack.steps", "threat.eps", "data", "a.b", ".", ""),
        *("training.batch_size", "training.optimizer.lr", "training.schedule.milestones", "training.seed"),
    ]
)


def built(table: dict[str, object]) -> None:
    """One that can be built can be written and read back."""
    made = RunConfig.of(table)
    assert RunConfig.of(json.loads(json.dumps(made.table()))) == made


@each_size
def test_files(tmp_path: Path, count: int) -> None:
    path = tmp_path / "mine.toml"

    def check(case: tuple[bytes, Changes]) -> None:
        path.write_bytes(changed(*case))
        with suppress(AtlasError):
            built(load_preset(str(path))[1])

    fuzz(st.tuples(st.sampled_from(FILES), changes), check, count)


@each_size
def test_words_of_the_command_line(count: int) -> None:
    def check(case: tuple[dict[str, object], str, bytes, Changes]) -> None:
        table, key, value, how = case
        words = changed(f"{key}=".encode() + value, how).decode(errors="surrogateescape")
        with suppress(AtlasError):
            built(override(table, *setting(words)))

    values = st.sampled_from([b"1e-3", b"8/255", b"[1, 2]", b"{name = 'pgd', steps = 3}", b"true", b"atlas"])
    fuzz(st.tuples(st.sampled_from(TABLES), keys, values, changes), check, count)


@each_size
def test_config_json(tmp_path: Path, count: int) -> None:
    """As it stands in a run's folder; with its hash put right again, so that it comes past that."""
    path = tmp_path / "config.json"

    def check(case: tuple[dict[str, object], Changes, bool]) -> None:
        table, how, sealed = case
        text = changed(json.dumps(table).encode(), how).decode(errors="replace")
        with suppress(ValueError, RecursionError):
            digest = fingerprint(json.loads(text)) if sealed else fingerprint(table)
            text = json.dumps({"config": json.loads(text), "hash": digest})
        path.write_text(text)
        with suppress(AtlasError):
            built(load_config(tmp_path).table())

    fuzz(st.tuples(st.sampled_from(TABLES), changes, st.booleans()), check, count)


def test_the_inputs_come_through_and_fail_in_turn(tmp_path: Path) -> None:
    """A fuzzer whose inputs were all refused at the door would test nothing but the door."""
    path, outcomes = tmp_path / "mine.toml", set[str]()

    def check(case: tuple[bytes, Changes]) -> None:
        path.write_bytes(changed(*case))
        try:
            built(load_preset(str(path))[1])
            outcomes.add("built")
        except AtlasError as error:
            outcomes.add("TOML" if "is not a TOML file" in str(error) else "value")

    fuzz(st.tuples(st.sampled_from(FILES), changes), check, 200)
    assert outcomes == {"built", "TOML", "value"}
