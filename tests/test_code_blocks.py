"""Every code block of README, CONTRIBUTING and docs, run as it stands."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch
import yaml

import atlas
from atlas.evaluation.evaluation_folder import load_report
from tests.published import ROOT

BLOCK = re.compile(r"^( *)```([\w{}-]*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|toml|yml))\n")
GUIDES = ("docs/how-to/add-a-method.md", "docs/how-to/add-an-attack.md")
"""Pages whose blocks are changes of the package."""
NOT_CODE = {"text", "bibtex", "{toctree}", "{generated}", "{include}"}
CLUSTER = {"MACHINES": "1", "GPUS": "2", "HEAD": "localhost"}
SMALL = ["--set", "training.schedule.epochs=1", "--set", "training.schedule.ramp_epochs=0"]
pytestmark = [
    pytest.mark.skipif(not (ROOT / "docs").exists(), reason="a source tree without its docs"),
    pytest.mark.timeout(1800),
]


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """(language, code) of the blocks of a page that are code, in their order."""
    for _, language, code in BLOCK.findall((ROOT / page).read_text("utf-8")):
        if language not in NOT_CODE:
            yield language, dedent(code)


def pages() -> list[str]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [str(path.relative_to(ROOT)) for path in found if path.exists()]
    return [name for name in names if name not in GUIDES and any(blocks(name))]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder in which `atlas`, `python` and `torchrun` are those of this environment."""
    for name, words in {"atlas": "-m atlas", "python": "", "torchrun": "-m torch.distributed.run"}.items():
        program(tmp_path / "bin" / name, f'exec {sys.executable} {words} "$@"')
    program(tmp_path / "bin" / "pip", 'echo "$@" >> "$PIP_LOG"')
    for key, value in {**CLUSTER, "PIP_LOG": str(tmp_path / "pip.log"), "COLUMNS": "80"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.syspath_prepend(str(tmp_path / "work"))
    before = set(sys.modules)
    with torch.random.fork_rng():
        yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def program(path: Path, line: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("page", pages())
def test_a_page_runs_from_top_to_bottom(page: str, place: Path) -> None:
    names: dict[str, object] = {}
    for language, code in blocks(page):
        if file := FILE.match(code):
            Path(file[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(file[1]).write_text(code)
        if language == "python" and not file:
            (place / "block.py").write_text(code)
            names |= runpy.run_path(str(place / "block.py"), init_globals=names)
        elif language == "bash":
            shell(code)
        elif language == "sh":
            make(code)
        elif language == "yaml":
            workflow(code)
        elif language == "toml":
            tomllib.loads(code)
        assert language in ("python", "bash", "sh", "yaml", "toml"), f"nothing runs {language!r}"
    check_pip(place / "pip.log")
    check = CHECKS.get(page)
    if check:
        check(names)


def shell(code: str) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


def make(code: str) -> None:
    """Targets of the Makefile that are there; the tests are one of them, so they are not made."""
    targets = re.findall(r"^make ([\w-]+)", code, re.MULTILINE)
    assert len(targets) == len(code.splitlines())
    subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, check=True)


def workflow(code: str) -> None:
    """The commands of a GitHub workflow."""
    for job in yaml.safe_load(code)["jobs"].values():
        for step in job["steps"]:
            if "run" in step:
                shell(step["run"])


def check_pip(log: Path) -> None:
    """Only what this package is called, and extras that it has, is asked for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in log.read_text().splitlines() if log.exists() else ():
        found = re.fullmatch(r"install (?:-U )?([\w-]+)(?:\[(\w+)\])?", line)
        assert found, line
        assert found[1] == project["name"]
        assert found[2] is None or found[2] in project["optional-dependencies"]


def follow(page: str, place: Path) -> None:
    """Do in a copy of the project what the page's blocks say: write files, add lines to tables, import."""
    imports = {}
    for language, code in blocks(page):
        assert language == "python"
        header, body = code.split("\n", 1)
        path, table = re.fullmatch(r"# (\S+?\.py)(?:, in (\w+))?", header).groups()  # type: ignore[union-attr]
        if table is None:
            assert not (place / path).exists(), "a new file, not one of ours"
            (place / path).write_text(body)
            module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
            imports |= dict.fromkeys(re.findall(r"^class (\w+)", body, re.MULTILINE), module)
            continue
        text = (place / path).read_text()
        text, added = re.subn(rf"^({table}\b.*{{\n)", rf"\g<1>    {body}", text, flags=re.MULTILINE)
        assert added == 1
        for name, module in imports.items():
            if re.search(rf"\b{name}\b", body):
                text = text.replace("\nfrom atlas", f"\nfrom {module} import {name}\nfrom atlas", 1)
        (place / path).write_text(text)


def test_the_guides_keep_every_promise(tmp_path: Path) -> None:
    """Followed to the letter, their examples pass the conformance tests, train and attack."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests/conformance", tmp_path / "tests/conformance")
    for guide in GUIDES:
        follow(guide, tmp_path)
    chosen = ["tests/conformance", "-k", "pairing or Walk or has_a_row"]
    tested = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen)
    passed = re.search(r"(\d+) passed", tested)
    assert passed
    assert int(passed[1]) > 60, "both examples go through the whole table"
    small = [*SMALL, "--set", "data=mnist-mini:100", "--set", "training.validation.size=20"]
    train = ["train", "mnist-small-adv-1", "--set", "method.name=pairing", *small, "--out", "run"]
    evaluate = ["evaluate", "run", "--attacks", "walk", "--n", "10"]
    assert "walk" in run(tmp_path, "-c", f"{IN_TURN}\ncommands({train}, {evaluate})")


IN_TURN = """
import sys
from atlas import cli

def commands(*all_words):
    for words in all_words:
        sys.argv = ["atlas", *words]
        try:
            cli.main()
        except SystemExit as ended:
            assert not ended.code, ended.code
"""


def run(place: Path, *words: str) -> str:
    """What `python WORDS` prints with the project at this place."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def robust_beats_plain(names: dict[str, object]) -> None:
    """What the first tutorial says of its two models."""
    robust, plain = (
        load_report(next(Path(f"runs/{name}/evaluations").iterdir())) for name in ("robust", "plain")
    )
    assert plain.clean.rate > 0.7
    assert robust.worst.rate > plain.worst.rate + 0.1
    assert Path("report.html").stat().st_size > 10_000


def readme_trains_no_toy(names: dict[str, object]) -> None:
    report = atlas.evaluate(names["model"], names["test_set"], names["threat"], n=100)  # type: ignore[arg-type]
    assert report.worst.right > 40


CHECKS = {
    "docs/tutorials/first-robust-model.md": robust_beats_plain,
    "README.md": readme_trains_no_toy,
}
"""What a page says of its results."""
