"""The code blocks of the README and the how-to guides, run as they stand."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch

from atlas import cli

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
GUIDES = ("docs/how-to/add-a-method.md", "docs/how-to/add-an-attack.md")
SMALL = ["--set", "training.schedule.epochs=1", "--set", "training.schedule.ramp_epochs=0"]


def blocks(page: str, language: str) -> list[str]:
    """The code of this language on a page, in its order."""
    found = BLOCK.findall((ROOT / page).read_text("utf-8"))
    return [dedent(code) for _, kind, code in found if kind == language]


def test_every_block_is_run() -> None:
    """A block more needs a test more."""
    counts = {page: len(BLOCK.findall((ROOT / page).read_text("utf-8"))) for page in ("README.md", *GUIDES)}
    assert counts == {"README.md": 2, **dict.fromkeys(GUIDES, 3)}


def test_readme_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("README.md", "python")
    (tmp_path / "readme.py").write_text(code)
    with torch.random.fork_rng():
        names = runpy.run_path("readme.py")
    assert names["report"].n == 100
    assert names["report"].worst.right > 40, "and what it trains is no toy"
    assert names["threat"].contains(names["x_adv"], names["x"]).all()


def test_readme_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("README.md", "toml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("mine.toml").write_text(code)
    Path("my_package").mkdir()
    Path("my_package/nets.py").write_text(
        "from torch import nn\n\n\ndef make():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))\n"
    )
    x = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
    np.savez("photos.npz", x=x, y=np.arange(40) % 4)
    monkeypatch.setattr("sys.argv", ["atlas", "train", "mine.toml", *SMALL])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (0, None)
    assert Path("runs/mine/last.safetensors").is_file()


def follow(page: str, place: Path) -> None:
    """Do in a copy of the project what the page's blocks say: write files, add lines to tables, import."""
    imports = {}
    for code in blocks(page, "python"):
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
