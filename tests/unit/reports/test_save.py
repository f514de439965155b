"""`report.save`: one evaluation as a page, a table or data, and the images that it kept."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
import torch

from atlas import data
from atlas.errors import CheckpointError, UsageError
from atlas.evaluation import Report
from atlas.evaluation.evaluation_folder import EvaluationFolder
from atlas.reports.collect import Given, collect
from atlas.reports.gallery import kept_by_model, kept_images
from tests.unit.reports import runs


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    return runs.make_data(tmp_path_factory.mktemp("data") / "digits.npz")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, digits: str) -> Report:
    """Of a model that is a little right, with the images that fool it."""
    root = tmp_path_factory.mktemp("fit")
    model = runs.make_fit(root / "run", digits)
    return runs.evaluated_by_hand(root / "evaluation", model, digits, save_images=True)


def test_each_suffix_has_its_format(report: Report, tmp_path: Path) -> None:
    for suffix in ("html", "md", "tex", "csv", "json"):
        report.save(tmp_path / f"it.{suffix}", name="my <b>net</b>")
    page = (tmp_path / "it.html").read_text()
    assert page.lstrip().startswith("<!doctype html>")
    assert "my &lt;b&gt;net&lt;/b&gt;" in page
    assert f"{100 * report.worst.rate:.1f}" in page
    assert "Robust accuracy (%) per class" in page
    assert "| my &lt;b&gt;net" in (tmp_path / "it.md").read_text()
    assert (tmp_path / "it.tex").read_text().startswith("\\begin{table")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "it.csv").read_text())))
    assert [row["attack"] for row in rows[:-1]] == ["clean", "PGD-3", "worst case"]
    assert float(rows[-2]["accuracy"]) == pytest.approx(100 * report.worst.rate)
    assert rows[-1]["attack"].startswith("worst class: ")
    assert json.loads((tmp_path / "it.json").read_text()) == json.loads(json.dumps(report.summary()))
    with pytest.raises(UsageError, match=r"must end in one of \.html, .*got .*it\.pdf"):
        report.save(tmp_path / "it.pdf")


def test_the_page_has_the_images_that_were_kept(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path / "it.html")
    page = (tmp_path / "it.html").read_text()
    classes = len(set(report.y[report.results["PGD-3"].fooled].tolist()))
    assert classes > 1
    assert page.count("after PGD-3") == classes
    assert page.count("<img") == classes


def test_originals_stand_beside_kept_images_where_the_data_hold_them(report: Report, digits: str) -> None:
    images = data.load(digits, train=False)
    with_originals = kept_images(report, images)
    assert with_originals
    assert all(each.x and each.views[0].change for each in with_originals)
    assert all(each.views[0].scale == pytest.approx(10) for each in with_originals)
    (found,) = collect([Path(str(report.folder))])
    assert kept_by_model([found], Given(data=digits)) == {found.name: with_originals}
    other = images.subset(torch.arange(len(images)).flip(0))
    other = data.Images(other.x, other.y, 10)
    for elsewhere in (other, images.subset(slice(10))):
        without = kept_images(report, elsewhere)
        assert [each.x + each.views[0].change for each in without] == [""] * len(with_originals)
        known = [each.views[0].x_adv for each in with_originals]
        assert [each.views[0].x_adv for each in without] == known


def test_kept_images_of_another_evaluation_are_refused(report: Report, tmp_path: Path) -> None:
    place = Path(shutil.copytree(str(report.folder), tmp_path / "copy"))
    (found,) = collect([place])
    assert kept_by_model([found], Given())[found.name]
    ids, x_adv = torch.arange(3), torch.rand(3, 1, 28, 28)
    EvaluationFolder(place).save("images-pgd-3.safetensors", {"ids": ids, "x_adv": x_adv})
    with pytest.raises(CheckpointError, match=r"images-pgd-3\.safetensors does not hold"):
        kept_by_model([found], Given())


def test_without_a_folder_there_is_a_page_too(digits: str, tmp_path: Path) -> None:
    report = runs.evaluated_by_hand(None, lambda x: x.flatten(1)[:, 300:310], digits)
    report.save(str(tmp_path / "it.html"))
    assert "<img" not in (tmp_path / "it.html").read_text()


def test_one_answer_stands_on_the_card_in_the_table_and_among_the_warnings(
    digits: str, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="constant"):
        report = runs.evaluated_by_hand(None, lambda x: torch.eye(10)[:1] + 0 * x.flatten(1)[:, :1], digits)
    for suffix in ("html", "md", "tex"):
        report.save(tmp_path / f"it.{suffix}", name="net")
    said = "constant: all 80 images get the same answer, class 0"
    page = (tmp_path / "it.html").read_text()
    assert f'<p class="grave">{said}' in page.split('id="comparison"')[0]
    assert '<span class="chip fooled">warning</span> <strong>constant</strong>' in page
    for table in ("it.md", "it.tex"):
        assert f"WARNING: net: {said}" in (tmp_path / table).read_text()
    assert "| worst class |" in (tmp_path / "it.md").read_text()
