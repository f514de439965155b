"""The report in a real Chromium, opened from disk. Where there is none, these tests are skipped by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atlas.reports import write
from atlas.reports.collect import Given, collect
from atlas.reports.gallery import kept_by_model
from atlas.reports.quick_attack import studied
from tests.browser.chromium import Chromium, find
from tests.unit.reports import runs
from tests.unit.reports import test_comparison as by_hand

PROGRAM = find()
pytestmark = pytest.mark.skipif(
    PROGRAM is None,
    reason="no Chromium here: scripts/system_packages.sh chromium, or set CHROMIUM",
)
HEADS = "[...document.querySelectorAll('table.sortable thead button')]"
ROWS = "[...document.querySelector('table.sortable').tBodies[0].rows]"
COLUMN = ROWS + ".map(r => Number(r.cells[{}].dataset.value))"
SORTED = "[...document.querySelectorAll('table.sortable thead th')].map(h => h.ariaSort)"
PAPER = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, one of them called like a script, with an attack whose label has quotes, and a collapse."""
    root = tmp_path_factory.mktemp("runs")
    images = runs.make_data(root / "digits.npz")
    names = [runs.NASTY, "plain/script>", "third"]
    places = [runs.make_run(root / name, images, seed=seed) for seed, name in enumerate(names)]
    for place in places:
        runs.evaluated(place)
    runs.collapse(places[2])
    found = collect(places)
    assert found[0].name.endswith(runs.NASTY)
    out = root / "report.html"
    text = write.page(found, studied(found, 60, progress=False), f"atlas report {runs.NASTY}")
    out.write_text(text, encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(str(PROGRAM), tmp_path_factory.mktemp("profile")) as program:
        yield program


@pytest.fixture
def opened(browser: Chromium, report: Path) -> Chromium:
    browser.look(1100, 900)
    browser.open(report)
    browser.evaluate("document.querySelector('[data-theme=auto]').click()")
    return browser


def test_it_opens_from_disk_and_asks_for_nothing(opened: Chromium, report: Path) -> None:
    assert opened.requests == [report.as_uri()]
    assert opened.complaints == []
    assert opened.evaluate("document.readyState") == "complete"
    assert opened.evaluate("document.compatMode") == "CSS1Compat"


def test_the_policy_is_in_force(opened: Chromium) -> None:
    """The policy refuses a foreign image and script, so the test above can fail."""
    opened.evaluate("document.body.append(Object.assign(new Image(), {src: 'file:///nothing.png'}))")
    opened.evaluate(
        "window.alien = Object.assign(document.createElement('script'), {text: 'window.ran = 1'})"
    )
    opened.evaluate("document.body.append(window.alien)")
    assert opened.evaluate("typeof window.ran") == "undefined"
    opened.evaluate("new Promise(done => setTimeout(done, 300))")
    assert any("Content Security Policy" in text for text in opened.complaints)


def test_text_from_folders_harms_nothing(opened: Chromium) -> None:
    assert opened.evaluate("document.scripts.length") == 1
    assert runs.NASTY in opened.evaluate("document.body.innerText")
    labels = opened.evaluate(f"{HEADS}.map(b => b.textContent)")
    assert runs.QUOTED in labels
    assert opened.complaints == []


def test_every_image_is_shown(opened: Chromium) -> None:
    widths = opened.evaluate("[...document.images].map(i => i.complete ? i.naturalWidth : 0)")
    attacked = opened.evaluate("document.querySelectorAll('.held, .fooled').length")
    assert attacked >= 3
    assert len(widths) == opened.evaluate("document.querySelectorAll('.exhibit').length") + 2 * attacked
    assert min(widths) == 28
    assert opened.evaluate("document.querySelectorAll('svg.chart').length") == 4
    assert opened.evaluate("document.querySelector('svg .collapse use') !== null")


def test_it_sorts_by_click(opened: Chromium) -> None:
    last = opened.evaluate(f"{HEADS}.length") - 2  # the worst case
    values = opened.evaluate(COLUMN.format(last))
    opened.evaluate(f"{HEADS}[{last}].click()")
    assert opened.evaluate(COLUMN.format(last)) == sorted(values, reverse=True)
    assert opened.evaluate(SORTED)[last] == "descending"
    opened.evaluate(f"{HEADS}[{last}].click()")
    assert opened.evaluate(COLUMN.format(last)) == sorted(values)
    assert opened.evaluate(SORTED).count("none") == len(opened.evaluate(SORTED)) - 1


def test_it_sorts_by_keyboard(opened: Chromium) -> None:
    opened.evaluate(f"{HEADS}[0].focus()")
    opened.press("Tab")
    opened.press("Enter")
    assert opened.evaluate(SORTED)[1] == "descending"
    values = opened.evaluate(COLUMN.format(1))
    assert values == sorted(values, reverse=True)


def test_the_theme_follows_the_system_and_a_switch(opened: Chromium) -> None:
    light = opened.evaluate(PAPER)
    opened.look(1100, 900, dark=True)
    dark = opened.evaluate(PAPER)
    assert light != dark
    opened.evaluate("document.querySelector('button[data-theme=light]').click()")
    assert opened.evaluate(PAPER) == light
    opened.look(1100, 900)
    opened.evaluate("document.querySelector('button[data-theme=dark]').click()")
    assert opened.evaluate(PAPER) == dark
    pressed = "[...document.querySelectorAll('.themes button')].map(b => b.ariaPressed)"
    assert opened.evaluate(pressed) == ["false", "false", "true"]


def test_charts_are_drawn_in_the_colours_of_the_theme(opened: Chromium) -> None:
    """Lines, markers and texts of each chart: matplotlib's SVG as the browser computes it."""
    drawn = "[...document.querySelectorAll('svg.chart .line {}')].map(e => getComputedStyle(e).{})"
    parts = [("path[fill=none]", "stroke"), ("use", "fill")]
    light = [set(opened.evaluate(drawn.format(*part))) for part in parts]
    assert light[0] == light[1]
    assert len(light[0]) == 3
    texts = "[...document.querySelectorAll('svg.chart text')].map(e => getComputedStyle(e).fill)"
    text = set(opened.evaluate(texts))
    opened.look(1100, 900, dark=True)
    dark = [set(opened.evaluate(drawn.format(*part))) for part in parts]
    assert dark[0] == dark[1]
    assert not dark[0] & light[0]
    assert not set(opened.evaluate(texts)) & text


@pytest.mark.parametrize("width", [320, 375, 768])
def test_a_phone_has_nothing_beyond_its_edge(browser: Chromium, report: Path, width: int) -> None:
    browser.look(width, 700, phone=True)
    browser.open(report)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.documentElement.scrollHeight") > 2000


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven models with long names under ten attacks."""
    labels = ("PGD-20", "PGD-1000", "Un-T 20x50", "Multi-T 20x50", "black box", "APGD-CE", "APGD-T")
    made = by_hand.report(90)
    result = made.results["PGD"]
    made = replace(made, results=dict.fromkeys((*labels, "FAB-T", "Square", "RayS 10000"), result))
    names = [f"mnist-quick-atlas-{k}-whose-name-is-rather-long" for k in range(7)]
    out = tmp_path_factory.mktemp("wide") / "wide.html"
    out.write_text(write.page([by_hand.run(name, made) for name in names], {}, "x"), encoding="utf-8")
    return out


def test_the_columns_of_a_wide_table_are_all_on_paper(browser: Chromium, wide: Path) -> None:
    """Letter paper has 816 pixels, of which some 740 are left between the margins."""
    browser.look(740, 1000, paper=True)
    browser.open(wide)
    right = browser.evaluate(
        "Math.max(...[...document.querySelectorAll('td')].map(c => c.getBoundingClientRect().right))"
    )
    browser.look(740, 1000)
    assert right <= 740


def test_a_long_name_leaves_room_for_numbers_on_a_phone(browser: Chromium, wide: Path) -> None:
    browser.look(360, 700, phone=True)
    browser.open(wide)
    assert browser.evaluate("document.querySelector('tbody th').offsetWidth") < 180
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_of_an_evaluation_alone_fits_and_shows_its_images(
    browser: Chromium, tmp_path: Path, width: int
) -> None:
    model = runs.make_fit(tmp_path / "fit", digits := runs.make_data(tmp_path / "digits.npz"))
    made = runs.evaluated_by_hand(tmp_path / "evaluation", model, digits, save_images=True)
    (found,) = collect([tmp_path / "evaluation"])
    text = write.page([found], {}, "x", kept_by_model([found], Given(data=digits)))
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    browser.look(width, 900, phone=width == 390)
    browser.open(tmp_path / "page.html")
    assert browser.complaints == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    widths = browser.evaluate("[...document.images].map(i => i.complete ? i.naturalWidth : 0)")
    classes = len(set(made.y[made.results["PGD-3"].fooled].tolist()))
    assert widths == [28] * 3 * classes
    right = browser.evaluate("Math.max(...[...document.images].map(i => i.getBoundingClientRect().right))")
    assert right <= width


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven models with long names and a course of training, for charts with their values."""
    rates = {"val_robust": 0.5, "val_clean": 0.9, "jacobian": 100.0}
    epochs = [{"epoch": k, "best": k == 0, **rates} for k in range(12)]
    names = [f"mnist-quick-atlas-{k}-whose-name-is-rather-long" for k in range(7)]
    made = [replace(by_hand.run(name, by_hand.report(90)), epochs=epochs) for name in names]
    out = tmp_path_factory.mktemp("trained") / "trained.html"
    out.write_text(write.page(made, {}, "x"), encoding="utf-8")
    return out


def test_values_of_charts_unfold_for_paper_and_are_all_on_it(browser: Chromium, trained: Path) -> None:
    browser.look(740, 1000, paper=True)
    browser.open(trained)
    opened = "[...document.querySelectorAll('details.values')].map(d => d.open)"
    assert browser.evaluate(opened) == [False, False]
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert browser.evaluate(opened) == [True, True]
    right = browser.evaluate(
        "Math.max(...[...document.querySelectorAll('.values td')].map(c => c.getBoundingClientRect().right))"
    )
    assert 370 < right <= 740
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert browser.evaluate(opened) == [False, False]
    browser.look(740, 1000)


def test_on_paper_only_what_announces_something_holds_on_to_it(browser: Chromium, report: Path) -> None:
    browser.look(740, 1000, paper=True)
    browser.open(report)
    after = "[...document.querySelectorAll('section > {}')].map(p => getComputedStyle(p).breakAfter)"
    assert set(browser.evaluate(after.format(".caption"))) == {"avoid"}
    folded = "[...document.querySelectorAll('details:not([open])')].map(d => d.offsetHeight)"
    assert set(browser.evaluate(folded)) == {0}
    assert set(browser.evaluate(after.format(".caption + .note"))) == {"avoid"}  # says of what a table is
    assert set(browser.evaluate(after.format(":not(.caption) + .note"))) == {"auto"}
    inside = "[...document.querySelectorAll('.card, .exhibit')].map(c => c.getBoundingClientRect().right)"
    assert max(browser.evaluate(inside)) <= 739  # at the very edge a border is cut
    browser.look(740, 1000)


def test_fingers_and_small_screens(browser: Chromium, report: Path) -> None:
    """Buttons large enough to be hit, intervals below their numbers, names of the gallery not cut."""
    browser.look(320, 700, phone=True)
    browser.open(report)
    sizes = browser.evaluate(
        f"{HEADS}.map(b => b.getBoundingClientRect()).map(r => Math.min(r.width, r.height))"
    )
    assert min(sizes) >= 44
    small = "[...document.querySelectorAll('.sortable td small')].map(s => getComputedStyle(s).display)"
    assert set(browser.evaluate(small)) == {"block"}
    cut = "[...document.querySelectorAll('.who span')].filter(s => s.scrollWidth > s.clientWidth)"
    assert browser.evaluate(f"{cut}.length") == 0


@pytest.mark.parametrize("dark", [False, True])
def test_numbers_on_every_shade_can_be_read(opened: Chromium, dark: bool) -> None:
    """A contrast of 4.5 to 1, of red as of green, as WCAG counts it."""
    opened.look(1100, 900, dark=dark)
    for kind in "de":
        shades = opened.evaluate(
            "(() => { const cell = document.querySelector('.matrix tbody td');"
            f" return [...Array(11).keys()].map(k => {{ cell.className = '{kind} h' + k;"
            " const s = getComputedStyle(cell); return [s.color, s.backgroundColor]; }); })()"
        )
        assert len({back for _, back in shades}) == 11
        assert min(contrast(ink, back) for ink, back in shades) >= 4.5


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Of `rgb(r, g, b)`, or `color(srgb r g b)` as the mixture of two comes."""
    values = [float(text) for text in re.findall(r"(?<![a-z])[\d.]+", colour)][:3]
    shares = values if colour.startswith("color(") else [value / 255 for value in values]
    light = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]


def test_it_prints(opened: Chromium) -> None:
    pdf = opened.pdf()
    assert pdf.startswith(b"%PDF")
    assert 1 < pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") < 20
