"""Verdicts that were kept are reused only where the same attacks would find them again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atlas.attacks import PGD, Square, Transfer, engine
from atlas.data import Images
from atlas.errors import UsageError
from atlas.evaluation import Report, Shard, merge
from atlas.evaluation.compare import compared
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.evaluation_folder import EvaluationFolder, load_report
from atlas.evaluation.plan import Plan, attack_table
from tests.unit.evaluation.runs import THREAT, columns, net, noise, of_older_version, run


@pytest.fixture(scope="module")
def images() -> Images:
    return noise()


def surrogate(scale: float) -> Callable[[Tensor], Tensor]:
    """A function, and one of the same name whatever the scale."""

    def predict(x: Tensor) -> Tensor:
        return net()(scale * x)  # type: ignore[no-any-return]

    return predict


def black_box(*models: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    return {"attacks": {"black box": Transfer(models, PGD(steps=5))}}


def test_another_surrogate_of_the_same_name_is_refused(images: Images, tmp_path: Path) -> None:
    first = run(images, folder=tmp_path, **black_box(surrogate(0.9)))
    assert columns(run(images, folder=tmp_path, **black_box(surrogate(0.9)))) == columns(first)
    said = "other surrogates: those of black box answered the clean images differently; choose another"
    with pytest.raises(UsageError, match=said):
        run(images, folder=tmp_path, **black_box(surrogate(0.2)))
    with pytest.raises(UsageError, match="holds another evaluation"):
        run(images, folder=tmp_path, **black_box(surrogate(0.9), surrogate(0.9)))


def test_surrogates_are_known_after_a_merge(images: Images, tmp_path: Path) -> None:
    for index in range(2):
        run(images, folder=tmp_path, shard=Shard(index, 2), **black_box(surrogate(0.9)))
    merge(tmp_path, 2, ["black box"])
    with pytest.raises(UsageError, match="other surrogates"):
        run(images, folder=tmp_path, **black_box(surrogate(0.2)))
    run(images, folder=tmp_path, **black_box(surrogate(0.9)))


def test_a_random_surrogate_is_not_taken_for_another(images: Images, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)

    def noisy(x: Tensor) -> Tensor:
        return net()(x) + torch.randn(len(x), 4, generator=generator)  # type: ignore[no-any-return]

    first = run(images, folder=tmp_path, **black_box(noisy))
    assert columns(run(images, folder=tmp_path, **black_box(noisy))) == columns(first)


CHAIN: Any = {"Square": Square(queries=30), "PGD": PGD(steps=5)}
TURNED = dict(reversed(CHAIN.items()))


def chained(images: Images, attacks: Any, folder: Path) -> Report:
    """Each attack on what those before it have left, as in a suite that says so."""
    return Evaluation(net(), images, Plan(THREAT, attacks, cascade=True)).run(folder, progress=False)


def test_a_chain_in_another_order_is_another_evaluation(images: Images, tmp_path: Path) -> None:
    one = chained(images, CHAIN, tmp_path / "one")
    other = chained(images, TURNED, tmp_path / "other")
    assert one.worst == other.worst
    assert one.score("Square") != other.score("Square"), "an attack's row depends on those before it"
    with pytest.raises(UsageError, match=r"order: \['Square', 'PGD'\] -> \['PGD', 'Square'\]"):
        chained(images, TURNED, tmp_path / "one")
    for a, b in ((one, other), (load_report(tmp_path / "one"), load_report(tmp_path / "other"))):
        assert list(compared(a, b)) == ["clean", "worst case"]
    assert list(compared(one, one)) == ["clean", *CHAIN, "worst case"]


def test_without_a_chain_the_order_means_nothing(images: Images, tmp_path: Path) -> None:
    first = run(images, folder=tmp_path, attacks=CHAIN)
    again = run(images, folder=tmp_path, attacks=TURNED)
    assert {label: again.score(label) for label in CHAIN} == {label: first.score(label) for label in CHAIN}


def test_a_chain_of_an_older_version_has_its_order_in_the_summary(images: Images, tmp_path: Path) -> None:
    first = chained(images, CHAIN, tmp_path)
    of_older_version(tmp_path)
    config = tmp_path / "config.json"
    table = json.loads(config.read_text())
    config.write_text(json.dumps({key: value for key, value in table.items() if key != "order"}))
    assert EvaluationFolder(tmp_path).about()["order"] == list(CHAIN)
    assert columns(chained(images, CHAIN, tmp_path)) == columns(first)
    with pytest.raises(UsageError, match="order"):
        chained(images, TURNED, tmp_path)


def test_a_fixed_attack_does_not_reuse_the_verdicts_of_the_broken_one(
    images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacks = {"PGD": PGD(steps=5), "black box": Transfer((net(),), PGD(steps=5))}
    before = run(images, folder=tmp_path, attacks=attacks)
    monkeypatch.setattr(PGD, "version", 2)
    with pytest.raises(UsageError, match=r"attacks\.PGD\.version: unset -> '1\.2'"):
        run(images, folder=tmp_path, attacks=attacks)
    after = run(images, attacks=attacks)
    assert list(compared(before, after)) == ["clean"], "verdicts of two versions are not compared"
    assert attack_table(attacks["black box"])["attack"]["version"] == "1.2"
    monkeypatch.setattr(engine, "VERSION", 3)
    tables = Plan(THREAT, attacks).table()["attacks"]
    assert [tables["PGD"]["version"], tables["black box"]["version"]] == ["3.2", "3.1"]


def test_a_first_version_is_known_as_before_there_were_versions() -> None:
    assert "version" not in attack_table(PGD(steps=5))
    assert "version" not in attack_table(Transfer((net(),)))
