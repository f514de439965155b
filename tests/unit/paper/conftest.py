"""One workspace for all tests of artefacts at scale smoke: they share runs, as artefacts do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atlas.reports import plots
from tests.unit.cli import command

Atlas = Callable[..., int]


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduce") / "workspace"


@pytest.fixture
def atlas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Atlas:
    """`atlas ARGUMENTS`, in a folder of its own: the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> int:
        return command.atlas(monkeypatch, *arguments)

    return run


@pytest.fixture
def quick_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """One format of three: drawing takes longer than all else."""
    monkeypatch.setattr(plots, "FORMATS", ("png",))


@pytest.fixture
def smoke(atlas: Atlas, workspace: Path, quick_plots: None) -> Callable[..., dict[str, Any]]:
    """An artefact at scale smoke in the shared workspace: its JSON."""

    def run(name: str, *options: object) -> dict[str, Any]:
        assert atlas("reproduce", name, "--scale", "smoke", "--workspace", workspace, *options) == 0
        made = (workspace / "results").glob(f"{name}-smoke*/{name}.json")
        path = max(made, key=lambda path: path.stat().st_mtime_ns)
        return dict(json.loads(path.read_text()))

    return run
