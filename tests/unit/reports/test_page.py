"""The page as text: nothing of a run's folder reaches it as more than text, and nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from atlas.attacks import PGD
from atlas.config import table_of
from atlas.data import Images
from atlas.evaluation import Flag
from atlas.reports import write
from atlas.reports.collect import ReportedModel, collect
from atlas.reports.quick_attack import Study, first_of_each_class, studied
from atlas.reports.write import tables
from atlas.threat import L2
from atlas.training.settings import REGISTRIES
from tests.unit.reports.runs import NASTY, QUOTED


class Seen(HTMLParser):
    """Tags, attributes and text, by a parser that is not ours."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


@pytest.fixture(scope="module")
def nasty(two_runs: list[Path]) -> tuple[list[ReportedModel], dict[str, Study]]:
    runs = [replace(run, name=name) for run, name in zip(collect(two_runs), [NASTY, "two"], strict=True)]
    runs[0] = replace(runs[0], command=f'atlas "{NASTY}"', notes=(NASTY,), commit=NASTY)
    return runs, studied(runs, 40, progress=False)


def test_text_stays_text(nasty: tuple[list[ReportedModel], dict[str, Study]]) -> None:
    text = write.page(*nasty, command=f"atlas report '{NASTY}'")
    seen = Seen(text)
    assert seen.tags.count("script") == 1
    assert NASTY in seen.texts
    assert QUOTED in seen.texts
    named = {
        name: replace(study, images=replace(study.images, class_names=(NASTY,) * 10))
        for name, study in nasty[1].items()
    }
    seen = Seen(write.page(nasty[0], named, command="x"))
    assert (seen.tags.count("script"), seen.texts.count(NASTY) > 10) == (1, True)
    assert not [name for _, name, _ in seen.attributes if name.startswith("on") or name == "style"]


def test_nothing_is_fetched(nasty: tuple[list[ReportedModel], dict[str, Study]]) -> None:
    seen = Seen(write.page(*nasty, command="atlas report"))
    links = [
        (tag, value) for tag, name, value in seen.attributes if name in ("src", "href", "action", "data")
    ]
    assert len(links) > 10
    assert all(value.startswith(("data:", "#")) for _, value in links)


def test_the_policy_lets_only_this_style_and_script_run(
    nasty: tuple[list[ReportedModel], dict[str, Study]],
) -> None:
    text = write.page(*nasty, command="atlas report")
    (policy,) = [v for t, n, v in Seen(text).attributes if n == "content" and "default-src" in v]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_the_same_runs_give_the_same_page(nasty: tuple[list[ReportedModel], dict[str, Study]]) -> None:
    assert write.page(*nasty, command="x") == write.page(*nasty, command="x")


def test_what_an_evaluation_calls_invalid_has_no_curve_either(two_runs: list[Path]) -> None:
    runs = collect(two_runs)
    report = runs[0].evaluations["quick-0"]
    flag = Flag("not-uphill", True, "a gradient that leads nowhere")
    runs[0] = replace(runs[0], evaluations={"quick-0": replace(report, flags=[flag])})
    studies = studied(runs, 40, progress=False)
    assert studies["first"].reasons == ("not-uphill",)
    text = write.page(runs, studies, command="x")
    assert "first: invalid (not-uphill): left out of curves, gallery and predictions" in text
    assert text.count("first: ε") == 0
    assert text.count("second: ε") > 3
    assert "after the attack on second" in text
    assert "after the attack on first" not in text
    flagged = {name: replace(each, flags=(flag,)) for name, each in studies.items()}
    assert "<img" not in write.page(runs, flagged, command="x")
    assert text.count("a gradient that leads nowhere") == 1


def test_without_attacks_the_page_says_what_is_left_out(
    nasty: tuple[list[ReportedModel], dict[str, Study]],
) -> None:
    text = write.page(nasty[0], {}, command="x")
    assert "No model was attacked for this report" in text
    assert "<img" not in text
    assert "Robust accuracy (%) per class" in text  # which the evaluation knows


def test_without_evaluations_the_page_says_so(nasty: tuple[list[ReportedModel], dict[str, Study]]) -> None:
    text = write.page([replace(run, evaluations={}) for run in nasty[0]], {}, command="x")
    assert "None of these runs has been evaluated yet" in text
    assert "not checked, because" in text


def test_models_on_other_data_are_in_the_first_lines_too(two_runs: list[Path]) -> None:
    runs = collect(two_runs)
    report = runs[1].evaluations["quick-0"]
    elsewhere = replace(report, about={**report.about, "data_hash": "x", "data": "photos"})
    text = write.page([runs[0], replace(runs[1], evaluations={"quick-0": elsewhere})], {}, command="x")
    first = text.split('id="comparison"')[0]
    assert "2 models in 2 comparisons" in first
    assert first.count('<article class="card') == 2
    assert "photos, L∞" in first
    classes = text.split("<h2>Classes</h2>")[1]
    assert classes.count("Robust accuracy (%) per class") == 2
    assert "photos, L∞" in classes.split('id="training"')[0]


def test_every_part_has_the_data_sets_in_the_order_of_the_runs(
    nasty: tuple[list[ReportedModel], dict[str, Study]],
) -> None:
    runs, studies = nasty
    report = runs[1].evaluations["quick-0"]
    far = replace(report, about={**report.about, "data": "far", "data_hash": "x"})
    runs = [runs[0], replace(runs[1], evaluations={"quick-0": far})]
    first, second = studies[NASTY], studies["two"]
    elsewhere = replace(second.images, name="far", x=second.images.x.flip(3))
    other = {"two": replace(second, images=elsewhere), NASTY: first}
    for given in (runs, runs[::-1]):
        text = write.page(given, other, command="x")
        tables = re.findall(r'class="caption">(far)?[^<]*, L∞', text.split('id="comparison"')[1])
        curves = re.findall(r"Radius and steps: (far)?", text)
        assert tables == curves == (["", "far"] if given is runs else ["far", ""])


def test_of_many_classes_the_words_say_what_is_shown(
    nasty: tuple[list[ReportedModel], dict[str, Study]],
) -> None:
    few = write.page(*nasty, command="x")
    assert "The first image of each class that a model gets right, else its first. For each model" in few
    assert "Of 40 images. Rows are true classes" in few
    runs, studies = nasty
    images = Images(torch.rand(40, 1, 2, 2), torch.arange(40), 40)
    made = {"images": images, "logits": torch.eye(40), "logits_adv": torch.eye(40).roll(1, 0)}
    wider = {name: replace(s, **made, shown=torch.arange(10)) for name, s in studies.items()}
    many = write.page(runs, wider, command="x")
    assert "of the first 10 classes to appear. For each model" in many
    assert "The most frequent errors on 40 images" in many
    assert "Rows are true classes" not in many


def test_the_gallery_names_models_in_full_and_says_what_was_not_attacked(two_runs: list[Path]) -> None:
    runs = collect(two_runs)
    studies = {name: replace(s, flags=()) for name, s in studied(runs, 40, progress=False).items()}
    y = studies["first"].y
    knows, errs = torch.eye(10)[y], torch.eye(10)[(y + 1) % 10]
    firsts = first_of_each_class(y, torch.ones(len(y), dtype=torch.bool))
    studies["first"] = replace(studies["first"], logits=knows, shown=firsts)
    studies["second"] = replace(studies["second"], logits=errs, logits_adv=errs, shown=firsts)
    text = write.page(runs, studies, command="x")
    shown = text.count('<article class="exhibit">')
    assert text.count('<span class="who" title="second">') == shown
    assert text.count("after the attack on first") == text.count("not attacked") == shown
    assert "after the attack on second" not in text
    assert "(enlarged 10 times; red is brighter, blue darker)" in text
    euclidean = {name: replace(s, threat=L2(1.0)) for name, s in studies.items()}
    assert "(each enlarged until it can be seen; red" in write.page(runs, euclidean, command="x")


def test_a_page_says_how_the_runs_were_trained(nasty: tuple[list[ReportedModel], dict[str, Study]]) -> None:
    runs = [replace(run, evaluations={}, architecture=NASTY) for run in nasty[0]]
    seen = Seen(write.page(runs, {}, command="x"))
    assert any(text.startswith("fgsm") and text.endswith("L∞, ε = 0.1") for text in seen.texts)
    assert "at most 3 epochs, adam with lr 0.002, guided, batches of 20" in " ".join(seen.texts)
    (settings, _) = [text for text in seen.texts if text.startswith("{")]
    assert json.loads(settings) == json.loads((runs[0].path / "config.json").read_text())["config"]
    assert any(text.startswith(NASTY) for text in seen.texts)
    assert seen.tags.count("script") == 1


def test_an_attack_without_a_step_size_says_that_it_is_the_default() -> None:
    default, own, relative = PGD(steps=3), PGD(step_size=0.01), PGD(relative_step=0.25)
    said = [write.settings_text(table_of(attack, REGISTRIES)) for attack in (default, own, relative)]
    assert said[0].endswith("step size: the default")
    assert "step_size 0.01" in said[1]
    assert "relative_step 0.25" in said[2]
    assert ["default" in text for text in said] == [True, False, False]


def test_backticks_are_code_and_the_rest_is_escaped() -> None:
    assert write.coded("run `a <b>` & `c`") == "run <code>a &lt;b&gt;</code> &amp; <code>c</code>"
    assert write.coded("one ` alone") == "one ` alone"
    run = ReportedModel("a", Path("a"), {}, notes=("run `atlas evaluate`",))
    assert "run <code>atlas evaluate</code>" in write.page([run], {}, command="x")


def test_markdown_and_latex_hold_nasty_names(nasty: tuple[list[ReportedModel], dict[str, Study]]) -> None:
    assert "<script" not in tables(nasty[0], "md")
    assert r"\textless{}script\textgreater{}alert(1)" in tables(nasty[0], "latex")
    assert tables(nasty[0], "csv").startswith("model,evaluation,")
