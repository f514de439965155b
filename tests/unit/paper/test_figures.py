"""What the figures and tables of artefacts show, against rows that are made up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atlas.evaluation import Report
from atlas.evaluation.flags import MEANINGS, raised
from atlas.reports import plots
from atlas.runs import Run
from atlas_paper import collapse, figures, loss_curves, paper
from atlas_paper.artefacts import ARTEFACTS
from atlas_paper.cells import JobResult
from atlas_paper.request import SUITES, Request
from atlas_paper.results import Results, notes, side_by_side
from atlas_paper.workspace import Workspace
from tests.unit.paper.by_hand import report

KNOWN = {
    "cifar10-jac-alpha=0.5": "jac",
    "cifar100-jac-alpha=0.5": "jac",
    "cifar10-trades-beta=2": "trades-1",
    "cifar100-trades-beta=2": "trades-1",
    "cifar10-atlas-alpha=0.0002-beta=5": "atlas-1",
    "cifar100-atlas-alpha=0.0002-beta=5": "atlas-1",
    "cifar10-adv-plateau=2-relative_step=1.25": "adv-1",
}
"""The points of sweeps that are rows of the paper's tables."""
SWEEPS = (
    "step-size",
    "alpha-sweep",
    "beta-sweep",
    "atlasg-vs-trades",
    "jac-sweep",
    "trades-sweep",
    "atlas-grid",
)
EPOCHS = [(0.10, 0.9, 5.0), (0.50, 0.8, 7.0), (0.15, 0.85, 90.0), (0.20, 0.95, 40.0)]
"""Validation robust and clean accuracy and J²; the second is the best, the third a collapse."""


def results(
    name: str,
    folder: Path,
    reports: Mapping[str, Mapping[str, Report]],
    *,
    calm: bool = False,
    **options: Any,
) -> Results:
    """The artefact with these evaluations by row and column, and each row's training as above."""
    request = Request(ARTEFACTS[name], **options)
    run = Run(folder / "run")
    run.path.mkdir(exist_ok=True)
    run.metrics_path.write_text("".join(json.dumps(record) + "\n" for record in records(calm)))
    jobs = {
        row.key: (JobResult(request.job(row, 0), run, "finished", reports.get(row.key, {})),)
        for row in request.rows
    }
    return Results(request, jobs, Workspace(folder))


def records(calm: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for k, (robust, clean, jacobian) in enumerate(EPOCHS):
        found.append({"kind": "probe", "epoch": k, "step": 10 * (k + 1), "jacobian": jacobian + 1})
        numbers = {"val_robust": robust, "val_clean": clean, "jacobian": jacobian, "best": k < 2}
        more = {"collapse": k == 2 and not calm, "step": 10 * (k + 1), "lr": 0.1, "eps": 0.1, "loss": 1.0}
        found.append({"kind": "epoch", "epoch": k, **numbers, **more})
    return found


def of_ten(right: int) -> Report:
    return report([1] * right + [0] * (10 - right), [1] * 10)


def drawn(axes: Any, marker: str) -> list[tuple[float, float]]:
    """The points with this marker, in the order in which they were drawn."""
    lines = [line for line in axes.lines if line.get_marker() == marker]
    return [point for line in lines for point in zip(line.get_xdata(), line.get_ydata(), strict=True)]


# --- figures ---


def test_dots_are_our_numbers_and_the_papers(tmp_path: Path) -> None:
    found = results(
        "ablation-cifar10", tmp_path, {"adv-1": {"Multi-T": of_ten(3)}, "atlas-1": {"Multi-T": of_ten(7)}}
    )
    clean, robust = ARTEFACTS["ablation-cifar10"].figure(found).axes
    rows = [row.key for row in found.rows]
    ours = [(30.0, rows.index("adv-1")), (70.0, rows.index("atlas-1"))]
    # A cross, because the training by hand collapses.
    assert drawn(robust, "x") == drawn(robust, "o") == ours
    assert drawn(clean, "x") == [(100.0, k) for _, k in ours]
    theirs = {y: x for x, y in drawn(robust, "D")}
    assert theirs == {k: paper.number("cifar10", key, "Multi-T") for k, key in enumerate(rows)}
    whiskers = [list(line.get_xdata()) for line in robust.lines if len(line.get_xdata()) == 2]
    assert whiskers == [pytest.approx([10.78, 60.32], abs=0.01), pytest.approx([39.68, 89.22], abs=0.01)]


def test_a_column_without_any_number_has_no_panel(tmp_path: Path) -> None:
    """The paper has no AutoAttack and no RayS on MNIST."""
    found = results("table1-mnist", tmp_path, {"adv-1": {"RayS": of_ten(3)}})
    shown = [axis.get_title() for axis in ARTEFACTS["table1-mnist"].figure(found).axes if axis.axison]
    assert shown == ["clean", "black box", "PGD-20", "PGD-1000", "Un-T", "Multi-T", "RayS"]


@pytest.mark.parametrize(("name", "empty"), [("table1-mnist", 1), ("table1-cifar10", 0)])
def test_panels_share_a_labelled_axis_and_hide_no_legend(tmp_path: Path, name: str, empty: int) -> None:
    figure = ARTEFACTS[name].figure(results(name, tmp_path, {"adv-1": {"RayS": of_ten(3)}}))
    plots.rendered(figure, "png")
    panels = [axis for axis in figure.axes if axis.axison]
    assert len(figure.axes) - len(panels) == empty
    assert {axis.get_xlim() for axis in panels} == {figures.SPAN}
    across = 4 if empty else 3
    assert [axis.get_xlabel() for axis in panels[-across:]] == ["accuracy (%)"] * across
    box = figure.legends[0].get_window_extent()
    assert not any(box.overlaps(axis.get_tightbbox()) for axis in panels)


@pytest.mark.parametrize("calm", [True, False])
def test_a_legend_has_the_marks_that_are_drawn(tmp_path: Path, calm: bool) -> None:
    found = results("ablation-cifar10", tmp_path, {"adv-1": {"Multi-T": of_ten(3)}}, calm=calm)
    figure = ARTEFACTS["ablation-cifar10"].figure(found)
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    assert names == {"paper", "ours, 95% interval"} | ({"ours, see the notes"} if not calm else set())


def test_lines_of_a_sweep_are_our_numbers_and_the_papers(tmp_path: Path) -> None:
    right = {"0.1": 2, "0.5": 6, "2": 4}
    reports = {f"cifar10-jac-alpha={alpha}": {"Multi-T": of_ten(k)} for alpha, k in right.items()}
    figure = ARTEFACTS["jac-sweep"].figure(results("jac-sweep", tmp_path, reports))
    _, robust, *_ = figure.axes
    assert drawn(robust, "o") == [(0.1, 20), (0.5, 60), (2.0, 40)]
    assert drawn(robust, "D") == [(0.5, paper.number("cifar10", "jac", "Multi-T"))]


def test_a_sweep_of_two_settings_has_a_line_for_each_value_of_the_other(tmp_path: Path) -> None:
    reports = {row.key: {"Multi-T": of_ten(5)} for row in ARTEFACTS["atlas-grid"].rows}
    figure = ARTEFACTS["atlas-grid"].figure(results("atlas-grid", tmp_path, reports))
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {f"one-step ATLAS, beta={beta}" for beta in (2, 5, 8)} <= names


@pytest.mark.parametrize("name", SWEEPS)
def test_only_the_papers_own_points_of_a_sweep_have_its_numbers(name: str) -> None:
    for row in ARTEFACTS[name].rows:
        assert row.paper == KNOWN.get(row.key, ""), row.key


def test_a_collapse_in_numbers(tmp_path: Path) -> None:
    table = collapse.summary(results("collapse", tmp_path, {}))
    texts = [[getattr(cell, "text", cell) for cell in line] for line in table.rows]
    numbers = ["4", "50.0", "15.0", "20.0", "7", "90", "80.0", "95.0", "epoch 3"]
    assert [line[3:] for line in texts] == [numbers] * 4
    assert [line[0] for line in texts if "clipped" in line[0]] == [
        "ATLAS, alpha = 0, beta = 1, start clipped, mnist"
    ]


def test_a_collapse_as_a_picture(tmp_path: Path) -> None:
    figure = collapse.draw(results("collapse", tmp_path, {}))
    jacobian, robust, clean, *_ = figure.axes
    assert list(jacobian.lines[0].get_ydata()) == [6, 8, 91, 41]
    assert list(jacobian.lines[0].get_xdata()) == pytest.approx([1, 2, 3, 4])
    assert list(robust.lines[0].get_ydata()) == pytest.approx([10, 50, 15, 20])
    assert list(clean.lines[0].get_ydata()) == pytest.approx([90, 80, 85, 95])
    assert [list(axis.lines[1].get_xdata()) for axis in (jacobian, robust, clean)] == [[3, 3]] * 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["collapse seen"]
    assert not collapse.draw(results("collapse", tmp_path, {}, calm=True)).legends


def test_figures_say_what_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = torch.zeros(3, 2, loss_curves.POINTS)
    monkeypatch.setattr(loss_curves, "curves", lambda _: torch.stack([line, line]))
    for name, summary in {"collapse": collapse.summary, "loss-curves": loss_curves.summary}.items():
        notes = summary(results(name, tmp_path, {}, precision="bfloat16")).notes
        assert any(note.startswith("mnist: cnn-small on all 60,000 training images") for note in notes)
        assert "Trained in bfloat16, with channels last where that is fast." in notes
    legend = [
        t.get_text() for t in loss_curves.draw(results("loss-curves", tmp_path, {})).legends[0].get_texts()
    ]
    assert legend[-2:] == ["images along a model's own line", "images along the first model's line"]


# --- tables and their notes ---


@pytest.mark.parametrize(
    ("scale", "words"),
    [("smoke", "over all attacks."), ("cpu", "over all attacks but RayS, which had fewer images.")],
)
def test_the_note_names_what_the_worst_case_leaves_out(tmp_path: Path, scale: str, words: str) -> None:
    reports = {"cifar10-adv-1": {"RayS": of_ten(3), "AutoAttack": of_ten(5)}}
    found = results("rays-autoattack", tmp_path, reports, scale=scale)
    assert any(note.endswith(words) for note in notes(found))


@pytest.mark.parametrize("name", ["ablation-cifar10", "table1-cifar10"])
def test_there_is_no_note_on_a_worst_case_that_is_not_shown(tmp_path: Path, name: str) -> None:
    """No column of it, or no row that has one yet."""
    assert not any("worst case" in note for note in notes(results(name, tmp_path, {})))


def test_the_paired_tests_say_the_data_set_and_what_is_amiss_with_a_row(tmp_path: Path) -> None:
    reports = {f"cifar10-{key}": {"AutoAttack": of_ten(k)} for key, k in {"atlas-1": 7, "adv-1": 3}.items()}
    table = results("rays-autoattack", tmp_path, reports).tables["paired-cifar10"]
    assert table.title.endswith(": one-step ATLAS, cifar10 (collapsed) against others")
    assert {row[1].text for row in table.rows} == {"one-step ADV, cifar10 (collapsed)"}


def test_a_time_that_was_not_measured_is_missing_and_times_of_two_machines_do_not_compare(
    tmp_path: Path,
) -> None:
    rows = {key: {c: of_ten(5) for c in SUITES} for key in ("adv-1", "atlas-1")}
    found = results("table1-cifar10", tmp_path, rows)
    assert [words for words in found.missing if "time per batch" in words] == [
        f"{key} (seed 0: time per batch not measured)" for key in rows
    ]
    for threads, told in (((2, 2), "ours on an EPYC, 2 threads."), ((1, 2), "they cannot be compared.")):
        timed = {
            key: (
                replace(
                    found.jobs[key][0],
                    timing={"seconds": 0.1, "cpu": "an EPYC", "device": "cpu", "threads": n},
                ),
            )
            for key, n in zip(rows, threads, strict=True)
        }
        both = replace(found, jobs={**found.jobs, **timed})
        assert not [words for words in both.missing if "time per batch" in words]
        (note,) = (note for note in notes(both) if note.startswith("s/batch"))
        assert note.endswith(told)


def test_a_table_has_no_lines_and_no_columns_without_anything_in_them(tmp_path: Path) -> None:
    """The paper has no AutoAttack, no RayS and no worst case on MNIST."""
    reports = {"adv-1": {"PGD-20": of_ten(3)}, "adv-20": {"RayS": of_ten(2)}}
    table = side_by_side(results("table1-mnist", tmp_path, reports))
    told = [row[2].text for row in table.rows]
    assert told == [
        *("paper", "paper", "ours", "difference", "paper", "paper"),
        *("paper", "ours", "difference", "paper", "paper"),
    ]
    heads = [head.partition(" (")[0] for head in table.columns[3:]]
    assert heads == ["clean", "black box", "PGD-20", "PGD-1000", "Un-T", "Multi-T", "RayS", "s/batch"]


def test_what_is_invalid_keeps_its_column_and_its_line(tmp_path: Path) -> None:
    random = replace(of_ten(3), flags=[raised("random", "by hand", fatal=True)])
    table = side_by_side(results("table1-mnist", tmp_path, {"adv-1": {"RayS": random}}))
    assert "RayS (n = 10)" in table.columns
    assert "invalid (random)" in {cell.text for row in table.rows for cell in row}


@pytest.mark.parametrize(("network", "shown"), [("", "cnn-small"), ("cnn", "cnn")])
def test_titles_on_mnist_name_the_network(network: str, shown: str) -> None:
    title = Request(ARTEFACTS["table1-mnist"], network=network).title
    assert title == f"Table 1, MNIST, {shown}, scale cpu, as written"
    assert Request(ARTEFACTS["ablation-cifar10"]).title == "Table 2 (App. C), CIFAR-10, scale cpu"


def test_a_flag_is_explained_once_however_many_rows_have_it(tmp_path: Path) -> None:
    """By hand: of 100 images the white box leaves 90, of which Square fools 5 and RayS 4."""
    every = [1] * 100
    attacked = {
        "AutoAttack": report([0] * 10 + [1] * 90, every),
        "Square": report([1] * 95 + [0] * 5, every, white_box=False, name="Square"),
        "RayS": report([1] * 96 + [0] * 4, every, white_box=False, name="RayS"),
    }
    rows = dict.fromkeys(("cifar10-adv-1", "cifar10-atlas-1"), attacked)
    told = [note for note in notes(results("rays-autoattack", tmp_path, rows)) if "black-box" in note]
    left = "images that every white-box attack left"
    assert told == [
        *(
            f"{name}, cifar10, seed 0: black-box-stronger: Square fools 5 of 100 {left}; "
            f"RayS fools 4 of 100 {left}."
            for name in ("one-step ADV", "one-step ATLAS")
        ),
        f"black-box-stronger: {MEANINGS['black-box-stronger']}.",
    ]
