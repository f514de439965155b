"""The wheel: what is in it, and that it works where the source is not."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LARGEST = 2 << 20


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command, in an environment that knows nothing of the source."""
    ended = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "-w", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel, which shares only its dependencies with this one."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "-q", "install", "--no-deps", "--no-index", wheel, cwd=folder)
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    # Of a folder named in a .pth file the .pth files are not read, so the editable install stays unseen.
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def test_the_wheel_is_small_and_holds_the_two_packages_and_their_licences(wheel: Path) -> None:
    assert wheel.stat().st_size <= LARGEST
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = Parser().parsestr(archive.read(metadata).decode())
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"atlas", "atlas_paper"}
    assert about["License-Expression"] == "MIT AND CC-BY-SA-3.0"
    assert len(about.get_all("License-File") or []) == 2
    assert about.get_all("Project-URL")


@pytest.mark.timeout(600)
def test_a_clean_environment_with_the_wheel_runs_the_first_epoch_of_the_demo(
    installed: Path, tmp_path: Path
) -> None:
    where = run(installed / "python", "-c", "import atlas; print(atlas.__file__)", cwd=tmp_path)
    assert str(installed.parent) in where
    settings = ("data=mnist-mini:1000", "training.schedule.epochs=1", "training.schedule.ramp_epochs=0")
    options = [part for setting in settings for part in ("--set", setting)]
    run(installed / "atlas-robust", "train", "demo-adv-1", *options, "--out", "run", cwd=tmp_path)
    assert (tmp_path / "run" / "best.safetensors").exists()


def test_links_of_the_readme_work_outside_of_the_repository() -> None:
    """The package index shows the README alone. What it names of this repository is there."""
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert all(link.startswith("https://") for link in links)
    ours = [re.search(r"atlas-robust/atlas/(?:(?:blob|tree)/)?main/(.+)", link) for link in links]
    paths = [found.group(1) for found in ours if found]
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
