"""Runs that the tests of this folder share and do not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.reports import runs


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two evaluated runs; copy what a test changes."""
    root = tmp_path_factory.mktemp("runs")
    images = runs.make_data(root / "digits.npz")
    places = [runs.make_run(root / name, images, seed=seed) for seed, name in enumerate(["first", "second"])]
    for place in places:
        runs.evaluated(place)
    return places
