"""What docs/explanation/comparison.md says of the libraries that are installed here (peers.txt)."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from atlas.attacks import ATTACKS
from atlas.evaluation.flags import MEANINGS
from tests.published import ROOT

PAGE = ROOT / "docs/explanation/comparison.md"
PEERS = {"torchattacks": "torchattacks", "art": "adversarial-robustness-toolbox", "foolbox": "foolbox"}
SHORT = {"art": "ART"}
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="a source tree without its docs")


def source(module: str) -> dict[str, str]:
    """The files of an installed package, which is not imported."""
    try:
        version(PEERS[module])
    except PackageNotFoundError:
        pytest.skip(f"{module} is not installed")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    return {str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*.py")}


def mention(files: dict[str, str], words: str) -> set[str]:
    return {name for name, text in files.items() if re.search(words, text, re.IGNORECASE)}


@pytest.mark.parametrize("module", PEERS)
def test_the_version_is_the_one_that_was_looked_at(module: str) -> None:
    source(module)
    assert f"{SHORT.get(module, module)} {version(PEERS[module])}" in PAGE.read_text()


def test_torchattacks() -> None:
    files = source("torchattacks")
    assert not mention(files, r"resume|checkpoint|confidence interval|wilson|mcnemar|certif")
    assert not mention(files, r"optimizer\.step\(\).*model\.parameters|class \w*Trainer")
    assert "rob_acc" in files["attack.py"]


def test_art() -> None:
    files = source("art")
    trainers = {name for name in files if name.startswith("defences/trainer/")}
    for kind in ("madry_pgd", "fbf", "trades", "awp", "oaat", "certified"):
        assert any(kind in name for name in trainers)
    assert mention(files, r"get\(\"resume\"\)") == {"attacks/evasion/hop_skip_jump.py"}
    assert "metrics/gradient_check.py" in files
    assert "evaluations/security_curve/security_curve.py" in files
    assert not mention(files, r"wilson|mcnemar")
    assert mention(files, r"_lower_confidence_bound|binomtest") <= {
        name for name in files if "estimators/certification/" in name
    }


def test_foolbox() -> None:
    files = source("foolbox")
    assert not mention(files, r"resume|checkpoint|confidence interval|wilson|mcnemar|class \w*Trainer")
    assert "training mode" in files["models/pytorch.py"]
    assert {"models/tensorflow.py", "models/jax.py"} <= files.keys()


def test_atlas() -> None:
    assert len(MEANINGS) == 18, "eighteen warnings"
    assert {"rays", "apgd", "apgd-t", "fab-t", "square", "un-t", "multi-t"} <= ATTACKS.keys()
    assert not (ROOT / "src/atlas/bounds").exists(), "no certificates; change the table when there are"
