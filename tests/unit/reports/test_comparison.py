"""Comparisons, of verdicts made by hand, against scipy's tests and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atlas.evaluation import AttackResult, Flag, Report
from atlas.evaluation.score import WORST_CASE
from atlas.reports.collect import ReportedModel
from atlas.reports.comparison import Comparison, at_a_glance, comparisons, long_table, verdict
from atlas.reports.tables import Cell
from atlas.training import RunConfig

stats = pytest.importorskip("scipy.stats")
N = 100
CONFIG = {
    "data": "mnist-mini",
    "model": "cnn-small",
    "method": {"name": "adv", "attack": {"name": "fgsm"}},
    "threat": {"name": "linf", "eps": 0.3},
}


def report(right: int, *, shift: int = 0, fatal: Sequence[str] = (), **about: Any) -> Report:
    """An evaluation in which `right` of N images, from number `shift` on, withstand one attack."""
    held = torch.zeros(N, dtype=torch.bool)
    held[(torch.arange(right) + shift) % N] = True
    attempt = torch.where(held, -2, 0)
    zeros = torch.zeros(N, dtype=torch.int64)
    result = AttackResult("PGD", {"name": "pgd"}, True, 20, 1, attempt, zeros, zeros.float(), zeros)
    known = {"model": "m", "data": "digits", "data_hash": "d", "threat": {"name": "linf", "eps": 8 / 255}}
    known |= {"attacks": {}, "standing": False, "seed": 0, "attack_dtype": "float32", "eot": 1}
    flags = [Flag(name, True, "because") for name in fatal]
    everyone = torch.ones(N, dtype=torch.bool)
    return Report(known | about, torch.arange(N), zeros, everyone, {"PGD": result}, flags, {})


def run(name: str, *reports: Report) -> ReportedModel:
    found = {f"e{k}": each for k, each in enumerate(reports)}
    config = RunConfig.of(CONFIG)
    parts = {"method": config.method, "threat": config.threat, "training": config.training}
    known = {"data": config.data, "architecture": config.model, "settings": config.table(), **parts}
    return ReportedModel(name, Path(name), found, config_hash="h", seconds=60.0, **known)


def compare(*runs: ReportedModel) -> Comparison:
    (found,) = comparisons(runs)
    return found


def cells(comparison: Comparison, column: str) -> dict[str, Cell]:
    table = comparison.table()
    return {row[0].text: row[table.columns.index(column)] for row in table.rows}


def test_best_and_not_significant_by_the_exact_test() -> None:
    """80 against 76 and 70 of the same images, each holding a part of those that the best holds."""
    found = cells(compare(run("a", report(80)), run("b", report(76)), run("c", report(70))), "PGD")
    assert [found[name].best for name in "abc"] == [True, False, False]
    for name, fewer in {"b": 4, "c": 10}.items():
        p = stats.binomtest(0, fewer).pvalue
        assert found[name].tied == (p >= 0.05)
    low, high = stats.binomtest(80, N).proportion_ci(method="wilson")
    assert found["a"].interval == pytest.approx((100 * low, 100 * high))


def test_a_difference_that_intervals_would_hide() -> None:
    """The intervals of 80 and 70 overlap; the pairs do not lie."""
    found = cells(compare(run("a", report(80)), run("c", report(70))), WORST_CASE)
    a, c = found["a"].interval, found["c"].interval
    assert a is not None
    assert c is not None
    assert a[0] < c[1]
    assert not found["c"].tied


def test_those_that_share_the_best_are_all_bold() -> None:
    comparison = compare(run("a", report(80)), run("b", report(80, shift=3)), run("c", report(10)))
    found = cells(comparison, "PGD")
    assert [found[name].best for name in "abc"] == [True, True, False]
    assert "a and b share" in verdict(comparison)


@pytest.mark.parametrize("order", ["abc", "bac"])
def test_beside_two_that_share_the_best_no_mark_depends_on_their_order(order: str) -> None:
    """c holds 10 fewer than a, all of which a holds too (p = 0.002), but 14 that b does not (p = 0.14)."""
    made = {"a": report(50), "b": report(50, shift=14), "c": report(40)}
    comparison = compare(*(run(name, made[name]) for name in order))
    p = stats.binomtest(14, 38).pvalue
    found = comparison.to_the_best(comparison.entries[2], "PGD")
    assert found is not None
    assert found.p_value == pytest.approx(p)
    assert cells(comparison, "PGD")["c"].tied
    assert f"the lead over c (p = {p:.2g}) may be chance" in verdict(comparison)


def test_three_that_share_the_best_are_named_as_one_says_it() -> None:
    assert verdict(compare(*(run(name, report(80)) for name in "abc"))).startswith("a, b and c share the")


def test_clean_accuracy_is_compared_where_only_the_attacks_are_invalid() -> None:
    comparison = compare(run("a", report(99, fatal=["not-uphill"])), run("b", report(76)))
    assert [cell.best for cell in cells(comparison, "clean").values()] == [True, True]
    assert not any(cell.best for cell in cells(comparison, "PGD").values())
    random = compare(run("a", report(99, fatal=["random"])), run("b", report(76)))
    assert not any(cell.best for cell in cells(random, "clean").values())


def test_invalid_is_said_and_never_best() -> None:
    comparison = compare(
        run("a", report(99, fatal=["not-uphill"])), run("b", report(76)), run("c", report(60))
    )
    found = cells(comparison, "PGD")
    assert found["a"].text == "at most 99.0% (upper bound; likely lower, because of not-uphill)"
    assert found["a"].value is None
    assert found["b"].best
    assert "| at most 99.0% (" in comparison.table().markdown().split("training")[1].splitlines()[2]
    differences = comparison.differences()
    assert differences is not None
    assert [row[0].text for row in differences.rows] == ["a", "c"]
    assert [cell.text for cell in differences.rows[0][1:]] == ["+0.0", "", ""]


def test_differences_are_signed_as_the_row_minus_the_best() -> None:
    table = compare(run("a", report(80)), run("b", report(76))).differences()
    assert table is not None
    cell = table.rows[0][table.columns.index("PGD")]
    assert (cell.text, cell.value) == ("-4.0", pytest.approx(-4.0))
    assert cell.note == f"p = {stats.binomtest(0, 4).pvalue:.2g}"
    assert cell.interval is not None
    assert cell.interval[0] < -4 < cell.interval[1]


def test_where_interval_and_test_disagree_the_note_says_which_decides() -> None:
    """11 images that only a holds and 3 that only b does: the interval leaves out 0, and p = 0.057."""
    table = compare(run("a", report(50)), run("b", report(42, shift=11))).differences()
    assert table is not None
    cell = table.rows[0][table.columns.index("PGD")]
    assert cell.interval is not None
    assert cell.interval[1] < 0
    assert stats.binomtest(3, 14).pvalue > 0.05
    (note,) = table.legend
    assert "an approximation" in note
    assert note.endswith("where the two disagree the test decides")


@pytest.mark.parametrize(
    "about",
    [{"data_hash": "x"}, {"threat": {"name": "l2", "eps": 1.0}}, {"standing": True}, {"eot": 4}],
)
def test_what_cannot_be_compared_is_not_put_together(about: dict[str, Any]) -> None:
    found = comparisons([run("a", report(80), report(50, **about)), run("b", report(76))])
    assert [[entry.name for entry in each.entries] for each in found] == [["a", "b"], ["a"]]


def test_a_run_that_was_evaluated_twice_has_two_rows() -> None:
    table = compare(run("a", report(80), report(79, seed=1))).table()
    assert [row[0].text for row in table.rows] == ["a (e0)", "a (e1)"]


def test_one_row_a_model_and_attack_for_programs() -> None:
    table = long_table([run("a", report(80)), run("b", report(76))])
    row = dict(zip(table.columns, table.rows[4], strict=True))
    assert (row["model"].text, row["attack"].text, row["n"].value) == ("b", "PGD", 100)
    assert row["threat"].text == "L∞, ε = 8/255"
    assert row["accuracy"].value == pytest.approx(76)
    assert row["p against the best"].value == pytest.approx(stats.binomtest(0, 4).pvalue)


def test_the_sentence_says_what_the_test_says() -> None:
    lead = verdict(compare(run("a", report(80)), run("b", report(60))))
    assert lead.startswith("a has the highest accuracy under PGD, 80.0%")
    assert lead.endswith("; on these images that is more than chance (p < 0.001; one training of each).")
    near = verdict(compare(run("a", report(80)), run("b", report(78)), run("c", report(50))))
    assert near.endswith("; the lead over b (p = 0.5) may be chance.")
    alone = verdict(compare(run("a", report(80))))
    assert alone == "a has an accuracy of 80.0% [71.1, 86.7] under PGD, n = 100."


BOUND = "invalid: at most 99.0% (upper bound; likely lower, because of not-uphill)."


def test_the_sentence_names_who_is_invalid() -> None:
    a, b = run("a", report(80)), run("b", report(60))
    c, d = run("c", report(99, fatal=["random"])), run("d", report(99, fatal=["not-uphill"]))
    assert verdict(compare(c)) == "The result of c is invalid (random)."
    beside = verdict(compare(a, c))
    assert beside.startswith("a has an accuracy of 80.0%")
    assert beside.endswith("The result of c is invalid (random).")
    both = verdict(compare(a, b, c, d))
    assert both.startswith("a has the highest accuracy under PGD")
    assert both.endswith("The result of c is invalid (random) and that of d is " + BOUND)


def test_the_strongest_attack_comes_first_and_the_worst_of_several_is_called_so() -> None:
    weak, strong = (replace(report(right), ids=torch.arange(N)) for right in (80, 30))
    strong.results["Un-T"] = strong.results.pop("PGD")
    both = replace(strong, results={**weak.results, **strong.results})
    found = comparisons([run("a", weak, strong)])
    assert [each.worst_text for each in found] == ["under Un-T", "under PGD"]
    assert compare(run("a", both)).worst_text == "in the worst case"
    assert len(comparisons([run("a", weak, strong), run("b", weak)])[0].entries) == 2, "most runs before all"
    own = report(90, threat={"name": "linf", "eps": 0.3})
    assert comparisons([run("a", strong, own)])[0].about["threat"]["eps"] == 0.3, (
        "then the radius of the training"
    )


def test_data_sets_come_in_the_order_of_the_runs() -> None:
    """Though more runs, and lower accuracies, are on the second."""
    photos = {"data_hash": "x", "data": "photos"}
    runs = [run("a", report(80)), run("b", report(9, **photos)), run("c", report(8, **photos))]
    order = [each.about["data"] for each in comparisons(runs)]
    assert order == ["digits", "photos"]
    assert [each.about["data"] for each in comparisons(runs[::-1])] == order[::-1]


def test_a_page_begins_with_as_many_comparisons_as_it_takes_to_name_every_model() -> None:
    elsewhere = {"data_hash": "x", "data": "photos"}
    runs = [run("a", report(80), report(50, eot=4)), run("b", report(76)), run("c", report(9, **elsewhere))]
    found = at_a_glance(comparisons(runs))
    assert [[entry.name for entry in each.entries] for each in found] == [["a", "b"], ["c"]]
