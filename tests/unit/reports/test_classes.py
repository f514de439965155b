"""Classes and the gallery, on answers made by hand."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from atlas.data import Images
from atlas.evaluation import Flag
from atlas.reports import gallery
from atlas.reports.comparison import MOST_CLASSES, by_class
from atlas.reports.gallery import make_gallery
from atlas.reports.quick_attack import STEPS, Study, by_class_of, confusion, grouped
from atlas.reports.tables import Table
from atlas.threat import L2, Linf, Threat


def made(
    y: list[int],
    before: list[int],
    after: list[int],
    classes: int,
    threat: Threat = Linf(0.5),
    flags: tuple[Flag, ...] = (),
    class_names: tuple[str, ...] = (),
    **rest: Any,
) -> Study:
    """A study in which the model gives these answers, with the first image shown."""
    labels = torch.tensor(y)
    images = Images(torch.full((len(y), 1, 2, 2), 0.5), labels, classes, class_names=class_names)
    logits, logits_adv = (torch.eye(classes)[torch.tensor(answers)] * 5 for answers in (before, after))
    x = images.x[:1]
    x_adv = x + torch.tensor([[0.5, -0.5], [0.0, 0.25]])
    held = torch.zeros(len(STEPS), len(y), dtype=torch.bool)
    places = {"shown": torch.tensor([0]), "x": x, "x_adv": x_adv} | rest
    return Study(threat, 20, images, flags, logits, logits_adv, labels, held, **places)


def values(found: Table) -> list[list[float | None]]:
    return [[cell.value for cell in row[1:]] for row in found.rows]


def texts(found: Table) -> list[list[str]]:
    return [[cell.text for cell in row] for row in found.rows]


def test_the_confusion_matrix_by_counting() -> None:
    found = confusion("m", made([0, 0, 0, 1, 2], [0, 0, 0, 1, 2], [0, 1, 1, 1, 0], 4))
    assert values(found) == [[1, 2, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert found.columns == ("", "0", "1", "2", "3")
    assert texts(found)[0] == ["0", "33", "67", "", ""]
    assert texts(found)[3] == ["3", "", "", "", ""]


def test_of_many_classes_the_most_frequent_errors_are_listed() -> None:
    found = confusion("m", made([0, 0, 0, 1, 2], [0, 0, 0, 1, 2], [0, 1, 1, 1, 0], MOST_CLASSES + 1))
    assert texts(found) == [["0", "1", "2", "3"], ["2", "0", "1", "1"]]


def test_classes_are_called_by_their_names() -> None:
    study = made([1, 0], [1, 0], [0, 0], 2, class_names=("cat", "dog"))
    assert confusion("m", study).columns == ("", "cat", "dog")
    assert by_class_of({"m": study}).columns == ("class", "cat", "dog")
    (exhibit,) = make_gallery({"m": study})
    (view,) = exhibit.views
    assert (exhibit.class_name, view.before, view.after) == ("dog", "dog (99%)", "cat (99%)")


def test_of_many_classes_the_weakest_are_shown() -> None:
    y = torch.arange(50).repeat_interleave(4)
    right = torch.arange(200) % 4 < 4 - y // 10  # class 40 to 49 none of 4, 30 to 39 one of 4, ...
    found = by_class("x", y, {"a": right}, {"b": "invalid (random)"})
    said = "x; the 20 weakest of 50 classes in the mean of the models, the weakest first"
    assert found.notes == (said,)
    assert found.columns == ("class", *map(str, [*range(40, 50), *range(30, 40)]))
    assert values(found)[0] == [0] * 10 + [25] * 10
    assert texts(found)[1][:3] == ["b", "invalid (random)", ""]
    assert texts(found)[2] == ["images", *["4"] * MOST_CLASSES]


def test_classes_as_weak_as_those_shown_are_counted() -> None:
    y = torch.arange(33)
    found = by_class("x", y, {"a": y > 27}, {})  # 28 are never right
    assert found.columns == ("class", *map(str, range(MOST_CLASSES)))
    said = "x; the 20 weakest of 33 classes, the weakest first; 8 more are as weak as the last of these"
    assert found.notes == (said,)
    assert by_class("x", y[:20], {"a": y[:20] > 9}, {}).notes == ("x",)


def test_an_invalid_model_has_no_numbers() -> None:
    good = made([0, 1], [0, 1], [0, 0], 2)
    bad = made([0, 1], [0, 1], [0, 1], 2, flags=(Flag("random", True, "x"),))
    found = by_class_of({"good": good, "bad": bad})
    assert texts(found) == [["good", "100", "0"], ["bad", "invalid (random)", ""], ["images", "1", "1"]]
    assert values(found)[1] == [None, None]


@pytest.mark.parametrize(
    ("before", "after", "verdict"), [(0, 0, "held"), (0, 1, "fooled"), (1, 1, "wrong before")]
)
def test_the_verdict_on_an_exhibit(before: int, after: int, verdict: str) -> None:
    (exhibit,) = make_gallery({"m": made([0], [before], [after], 2)})
    (view,) = exhibit.views
    assert view.verdict == verdict
    sure = float(np.exp(5) / (np.exp(5) + 1))
    assert str(view.before) == f"{before} ({sure:.0%})"
    assert bool(view.change) == bool(view.x_adv) == (verdict != "wrong before")


def test_an_exhibit_is_the_first_image_of_its_class_that_any_model_gets_right() -> None:
    """Of class 0 the first model knows the third image, the second model the second; of class 1 none does."""
    y, pictured = [0, 0, 0, 1], {"x": torch.rand(2, 1, 2, 2), "x_adv": torch.rand(2, 1, 2, 2)}
    one = made(y, [1, 1, 0, 0], [1, 1, 0, 0], 2, shown=torch.tensor([2, 3]), **pictured)
    two = made(y, [1, 0, 0, 0], [1, 1, 1, 0], 2, shown=torch.tensor([1, 3]), **pictured)
    for studies in ({"one": one, "two": two}, {"two": two, "one": one}):
        zero, unknown = make_gallery(studies)
        assert (zero.id, zero.class_name, unknown.id, unknown.class_name) == (1, "0", 3, "1")
        assert {view.name: view.verdict for view in zero.views} == {"one": "wrong before", "two": "fooled"}
        assert {view.verdict for view in unknown.views} == {"wrong before"}


def pixels(uri: str) -> Any:
    head, _, data = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_pictures_are_the_pixels() -> None:
    x = torch.tensor([[[0.0, 1.0], [0.5, 0.2]]])
    assert pixels(gallery.png(x)).tolist() == [[0, 255], [128, 51]]
    colour = torch.rand(3, 4, 5)
    assert np.abs(pixels(gallery.png(colour)) / 255 - colour.permute(1, 2, 0).numpy()).max() < 1 / 255


def test_a_perturbation_is_red_where_brighter_and_white_where_nothing_was_done() -> None:
    study = made([0], [0], [0], 2)
    x, x_adv = study.x[0], study.x_adv[0]
    for threat in (study.threat, L2(3.0)):  # the largest change is 0.5
        picture, scale = gallery.enlarged_change(threat, x, x_adv)
        assert scale == 2
        drawn = pixels(picture)
        assert tuple(drawn[0, 0]) == gallery.MORE
        assert tuple(drawn[0, 1]) == gallery.LESS
        assert tuple(drawn[1, 0]) == (255, 255, 255)
    gray = torch.full((3, 2, 2), 0.3)
    picture, scale = gallery.enlarged_change(L2(3.0), gray, gray)
    assert scale == 1
    assert (pixels(picture) == 128).all()


def test_two_data_sets_of_one_name_are_kept_apart() -> None:
    first, second = made([0, 1], [0, 1], [0, 0], 2), made([1, 0], [0, 1], [0, 0], 2)
    assert [list(group) for group in grouped({"a": first, "b": second, "c": first})] == [["a", "c"], ["b"]]
