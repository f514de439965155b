"""Every package that is installed for us is pinned, to a version that has the known holes mended.

`make audit` asks a database of advisories, which needs the network; this needs none.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
MENDED = {
    "fonttools": ("4.43.0", "CVE-2023-45139"),
    "jinja2": ("3.1.6", "CVE-2025-27516"),
    "mako": ("1.2.2", "CVE-2022-40023"),
    "onnx": ("1.16.0", "CVE-2024-27318"),
    "pillow": ("11.3.0", "CVE-2025-48379"),
    "protobuf": ("6.31.1", "CVE-2025-4565"),
    "pygments": ("2.7.4", "CVE-2021-27291"),
    "pyyaml": ("5.4", "CVE-2020-14343"),
    "scipy": ("1.10.0", "CVE-2023-25399"),
    "setuptools": ("78.1.1", "CVE-2025-47273"),
    "torch": ("2.6.0", "CVE-2025-32434"),
    "tqdm": ("4.66.3", "CVE-2024-34062"),
    "werkzeug": ("3.0.6", "CVE-2024-49767"),
}
"""The first version without a hole that was published, of packages that had one."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, Version]:
    lines = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs), "every line is name==version"
    return {normal(name): Version(version) for name, version in pairs}


PINS = pins()


def declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [text for group in project["optional-dependencies"].values() for text in group]
    return [Requirement(text) for text in [*project["dependencies"], *extras] if "atlas-robust" not in text]


def needed() -> dict[str, Version]:
    """All that is installed because we, or those that we need, ask for it."""
    found: dict[str, Version] = {}
    waiting = declared()
    while waiting:
        wanted = waiting.pop()
        name = normal(wanted.name)
        if name in found:
            continue
        try:
            installed = distribution(name)
        except PackageNotFoundError:  # what only another platform needs, or an extra that was not asked for
            continue
        found[name] = Version(Version(installed.version).public)  # without +cpu and the like
        extras = ["", *wanted.extras]
        for text in installed.requires or []:
            below = Requirement(text)
            if below.marker is None or any(below.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(below)
    return found


def test_what_is_installed_is_pinned_to_that_version() -> None:
    found = needed()
    assert len(found) > 30
    assert {name: version for name, version in found.items() if PINS.get(name) != version} == {}


def test_pins_are_within_what_we_declare() -> None:
    for requirement in declared():
        pinned = PINS[normal(requirement.name)]
        assert requirement.specifier.contains(pinned), f"{requirement} and {pinned}"


@pytest.mark.parametrize("name", MENDED)
def test_known_holes_are_mended(name: str) -> None:
    first, advisory = MENDED[name]
    assert PINS[name] >= Version(first), advisory
