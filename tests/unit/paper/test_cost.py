"""Estimates against sums by hand, with a probe whose every answer is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atlas_paper.artefacts import ARTEFACTS
from atlas_paper.cost import A_RUN, AN_EVALUATION, Costs, Probe
from atlas_paper.request import Request

FORWARD, GRADIENT, STEP, HALF = 1.0, 3.0, 10.0, 0.5


class Known(Probe):
    """A machine on which passes in bfloat16 take half of the time."""

    def _measured(self, key: str, make: object, images: int) -> float:
        spent = FORWARD if "forward" in key else GRADIENT if "gradient" in key else STEP
        return spent * (HALF if "bfloat16" in key else 1)


def costs_of(folder: Path, **options: str) -> Costs:
    order = Request(ARTEFACTS["table1-mnist"], "cpu", folder, **options)  # type: ignore[arg-type]
    return Costs(order, Known(folder / "probe.json"))


@pytest.fixture
def costs(tmp_path: Path) -> Costs:
    return costs_of(tmp_path)


def test_training(costs: Costs) -> None:
    rows = {row.key: row for row in costs.order.rows}
    epoch = 55_000 * STEP + 5000 * 20 * GRADIENT
    assert costs.training(costs.order.run(rows["adv-1"], 0), "mnist") == A_RUN + 40 * epoch
    assert costs.training(costs.order.run(rows["adv-1"], 0), "mnist", done=30) == A_RUN + 10 * epoch
    assert costs.training(costs.order.run(rows["adv-1"], 0), "mnist", done=99) == A_RUN
    assert costs.training(costs.order.run(rows["jac"], 0), "mnist") == A_RUN + 22 * epoch


def test_every_further_step_of_an_attack_is_a_gradient(costs: Costs) -> None:
    (row,) = [row for row in costs.order.rows if row.key == "adv-20"]
    epoch = 55_000 * (STEP + 19 * GRADIENT) + 5000 * 20 * GRADIENT
    assert costs.training(costs.order.run(row, 0), "mnist") == A_RUN + 40 * epoch


def test_a_lower_precision_shortens_what_is_made_in_it(costs: Costs, tmp_path: Path) -> None:
    lower = costs_of(tmp_path, precision="bfloat16-all", attack_dtype="bfloat16")
    (row,) = [row for row in costs.order.rows if row.key == "adv-20"]
    one, other = (each.training(each.order.run(row, 0), "mnist") - A_RUN for each in (costs, lower))
    assert other == HALF * one
    for column in costs.order.columns(row):
        one, other = (c.attack(c.order.run(row, 0), row, column) - AN_EVALUATION for c in (costs, lower))
        if column.label == "AutoAttack":  # of which FAB and Square need float32
            assert HALF * one < other < one
        else:
            assert other == pytest.approx(one if column.label == "RayS" else HALF * one)


def test_attacks(costs: Costs) -> None:
    (row,) = [row for row in costs.order.rows if row.key == "adv-1"]
    run = costs.order.run(row, 0)
    spent = {c.label: costs.attack(run, row, c) - AN_EVALUATION for c in costs.order.columns(row)}
    assert spent["PGD-20"] == pytest.approx(10_000 * 0.9629 * 20 * GRADIENT)
    assert spent["PGD-1000"] == pytest.approx(1000 * 0.8325 * 1000 * GRADIENT)
    assert spent["Multi-T"] == pytest.approx(1000 * 0.9062 * 9 * 20 * 50 * GRADIENT)
    assert spent["black box"] == pytest.approx(1000 * 0.9949 * 1000 * GRADIENT)
    assert spent["RayS"] == pytest.approx(1000 * 0.5 * 40_000 * FORWARD)


def test_the_whole_is_the_sum_with_the_surrogate_once(costs: Costs) -> None:
    order = costs.order
    trainings = [costs.training(order.run(row, 0), "mnist") for row in order.rows]
    attacks = [costs.attack(order.run(r, 0), r, c) for r in order.rows for c in order.columns(r)]
    surrogate = costs.training(order.surrogate("mnist"), "mnist")
    assert costs.whole() == pytest.approx(sum(trainings) + sum(attacks) + surrogate)


def test_a_probe_measures_once_and_remembers(tmp_path: Path) -> None:
    order = Request(ARTEFACTS["five-step-adv"], "smoke", tmp_path)
    said: list[str] = []
    config = order.run(order.rows[1], 0).config
    first = Probe(tmp_path / "probe.json", "cpu", said.append)
    times = first.forward(config, "cifar10"), first.gradient(config, "cifar10"), first.step(config, "cifar10")
    assert all(0 < seconds < 1 for seconds in times)
    assert times[0] < times[1] < times[2]
    count = len(said)
    assert count == 4
    again = Probe(tmp_path / "probe.json", "cpu", said.append)
    assert again.step(config, "cifar10") == times[2]
    assert len(said) == count
    (kept,) = json.loads((tmp_path / "probe.json").read_text()).values()
    assert len(kept) == count
