"""The documentation site builds without a warning and can be read from disk, without a network."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer

import atlas
from atlas import presets
from atlas.attacks import suites
from atlas.cli.app import app
from atlas.config import table_of
from atlas.evaluation.flags import MEANINGS
from atlas.training import RunConfig
from atlas.training.settings import REGISTRIES
from scripts import word_counts

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.skipif(not (ROOT / "docs").exists(), reason="a source tree without its docs"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs")
    words = ["-q", "-W", "--keep-going", "-d", str(out / "doctrees"), "docs", str(out / "html")]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return out / "html"


class Loaded(HTMLParser):
    """What a page makes a browser load, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        if tag == "a":
            self.links.append(found.get("href", ""))
        elif tag in ("script", "img", "link", "iframe", "source"):
            self.loaded.append(found.get("src") or found.get("href") or "")


def test_a_page_loads_nothing_from_a_network_and_no_link_is_dead(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        found = Loaded(page.read_text())
        assert not [url for url in found.loaded if "//" in url]
        local = [url.partition("#")[0].partition("?")[0] for url in [*found.links, *found.loaded]]
        local = [url for url in local if url and not re.match(r"[a-z]+:", url)]
        assert [url for url in local if not (page.parent / url).exists()] == []


def test_the_reference_names_all_that_there_is(site: Path) -> None:
    def page(name: str) -> str:
        return (site / f"reference/{name}.html").read_text()

    names = [name for name in atlas.__all__ if not name.startswith("__")]
    assert all(
        f'id="atlas.{name}"' in page("api") or f'id="module-atlas.{name}"' in page("api") for name in names
    )
    commands = typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
    assert all(f">atlas {name}<" in page("cli") for name, command in commands if not command.hidden)
    assert all(f">{name}<" in page("presets") for name in presets.names())
    assert all(f">{name}<" in page("suites") for name in suites.names())
    assert all(f">{name}<" in page("warnings") for name in MEANINGS)
    table = RunConfig.of(presets.load_preset("mnist-atlas-1")[1])
    for key in keys(table_of(table.training, REGISTRIES), "training."):
        assert f">{key}<" in page("configuration"), key
    assert all(f">{code}<" in page("exit-codes") for code in (0, *range(2, 12)))


def test_pages_are_short() -> None:
    counts = word_counts.counts()
    readme = counts.pop("README.md")
    assert 300 < readme < 550
    assert {page: count for page, count in counts.items() if count > word_counts.most(page)} == {}
    assert sum(counts.values()) <= word_counts.TOTAL


def keys(table: dict[str, object], where: str) -> list[str]:
    """The dotted names of all settings; those of an attack have a table of their own."""
    found = []
    for key, value in table.items():
        below = isinstance(value, dict) and "name" not in value
        found += keys(value, f"{where}{key}.") if below else [f"{where}{key}"]  # type: ignore[arg-type]
    return found
