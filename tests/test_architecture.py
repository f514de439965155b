"""The rules of the source, read from the source: who may import whom, and what nobody may do.

Every rule is a function from source text to a list of complaints, so that planted violations show that
it can complain.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

LAYERS = (
    ("errors",),
    ("terminal", "signals", "machine"),
    ("files",),
    ("checkpoint", "config"),
    ("rng",),
    ("threat",),
    ("objectives",),
    ("models",),
    ("data",),
    ("attacks",),
    ("methods",),
    ("distributed",),
    ("runs",),
    ("training", "evaluation"),
    ("presets",),
    ("reports",),
    ("sweeps",),
    ("cli",),
    ("__main__",),
)
"""A module may import its own part of `atlas` and the layers above it here; parts of one layer do
not import each other. `atlas/__init__.py` puts them together."""
LAYER = {name: number for number, layer in enumerate(LAYERS) for name in layer}
NOT_LAYERS = {"__version__"}
OUTSIDE = {"atlas_paper", "benchmarks", "scripts", "tests"}
"""What stands above the library."""
UPWARDS = {
    ("atlas.evaluation.results", "atlas.reports.write.save_report"),
    ("atlas.cli.app", "atlas_paper.cli.reproduce"),
}
"""The imports upwards, both made late: a report that was just made saves itself, and the paper's command."""

UNPICKLERS = {"pickle.load", "pickle.loads", "pickle.Unpickler"}
UNSAFE = UNPICKLERS | {
    *("eval", "exec", "builtins.eval", "builtins.exec", "torch.load", "yaml.load", "yaml.unsafe_load"),
    *("marshal.load", "marshal.loads", "shelve.open", "joblib.load", "dill.load", "dill.loads"),
}
# The one place that reads pickles (CIFAR's), through an unpickler that refuses all but plain data.
RESTRICTED_UNPICKLER = "src/atlas/data/readers.py"
# The one place that calls torch.load, by whose weights_only=True nothing that a file names is called.
WEIGHTS_READER = "src/atlas/models/weights.py"
WEIGHTS_ONLY = "torch.load(weights_only=True)"

# A first folder that names one machine; a URL's path does not start after a letter or a dot.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:home|Users|root|work|opt|mnt|srv)/[\w.]")


def module_name(path: Path) -> str:
    """src/atlas/data/store.py is atlas.data.store; a package's __init__.py is the package."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, at any depth, names taken from a module included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            start = (f"{base}." if node.level else "") + (node.module or "")
            yield from ((node.lineno, f"{start.rstrip('.')}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((node.lineno, a.value) for a in node.args[:1] if isinstance(a, ast.Constant))


def wrong_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports that go up the layers, across a layer, or to what is in none."""
    own = module.split(".")[1]
    package = module if is_package else module.rpartition(".")[0]
    complaints = []
    for line, name in imported(ast.parse(source), package):
        first, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if other in NOT_LAYERS or (module, name) in UPWARDS:
            continue
        if first in OUTSIDE:
            complaints.append(f"{module}:{line}: imports {name}, which is not in the library")
        elif first == "atlas" and other not in LAYER:
            complaints.append(f"{module}:{line}: imports {name}, which is in no layer")
        elif first == "atlas" and other != own and LAYER[other] >= LAYER[own]:
            complaints.append(f"{module}:{line}: {own} may not import {other}")
    return complaints


def unsafe_uses(source: str) -> list[str]:
    """References, under whatever alias, to what runs code from data; numpy's pickles; and `.cuda()`."""
    tree = ast.parse(source)
    real = dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            real |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            real |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    complaints = []
    weights_only = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == "weights_only" and isinstance(word.value, ast.Constant) and word.value.value is True
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, dot, rest = ast.unparse(node).partition(".")
            name = real.get(first, first) + dot + rest
            if name in UNSAFE:
                safe = name == "torch.load" and id(node) in weights_only
                complaints.append(f"{node.lineno}: {WEIGHTS_ONLY if safe else name}")
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                complaints.append(f"{node.lineno}: allow_pickle")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            complaints.append(f"{node.lineno}: .cuda()")
    return complaints


def machine_paths(text: str) -> list[str]:
    lines = enumerate(text.splitlines(), 1)
    return [f"{i}: {line.strip()}" for i, line in lines if MACHINE_PATH.search(line) or str(ROOT) in line]


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git work tree, so there are no tracked files to read")
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def complaints_in(paths: list[Path], rule: Callable[[str], list[str]]) -> dict[str, list[str]]:
    found = {}
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a binary file
        found[str(path.relative_to(ROOT))] = rule(text)
    return {name: complaints for name, complaints in found.items() if complaints}


def test_imports_only_go_down_the_layers() -> None:
    library = sorted((SOURCE / "atlas").rglob("*.py"))
    modules = [path for path in library if module_name(path) != "atlas"]
    assert len(modules) > 20
    complaints = []
    for path in modules:
        complaints += wrong_imports(path.read_text(), module_name(path), path.name == "__init__.py")
    assert not complaints, "\n".join(complaints)


def test_every_module_is_in_a_layer() -> None:
    top = {path.stem for path in (SOURCE / "atlas").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert top - {"__init__", "__pycache__"} <= set(LAYER)


def test_nothing_runs_code_from_data_or_names_a_device() -> None:
    found = complaints_in([path for path in tracked() if path.suffix == ".py"], unsafe_uses)
    allowed = found.pop(RESTRICTED_UNPICKLER, [])
    assert all(complaint.endswith("pickle.Unpickler") for complaint in allowed), allowed
    (only,) = found.pop(WEIGHTS_READER)
    assert only.endswith(WEIGHTS_ONLY)
    assert not found, found


def test_no_machine_paths_in_tracked_files() -> None:
    found = complaints_in(tracked(), machine_paths)
    assert not found, found


@pytest.mark.parametrize("path", ["runs/mine/best.safetensors", "evaluations/old/clean.npz", "report.html"])
def test_what_commands_write_by_default_is_ignored_by_git(path: str) -> None:
    tracked()  # skips where there is no work tree
    assert not subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False).returncode


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import atlas.methods", "atlas.attacks.pgd"),
        ("from atlas.methods.adv import Adv", "atlas.attacks.pgd"),
        ("from atlas import training", "atlas.attacks.pgd"),
        ("from ..training import fit", "atlas.data.store"),
        ("def late():\n    from atlas.cli import main", "atlas.reports.html"),
        ("if TYPE_CHECKING:\n    from atlas.cli import main", "atlas.reports.html"),
        ("import importlib\nimportlib.import_module('atlas.cli')", "atlas.reports.html"),
        ("from atlas.evaluation import evaluate", "atlas.training.fit"),
        ("from atlas.training import fit", "atlas.evaluation.run"),
        ("import atlas", "atlas.cli.main"),
        ("from atlas import fit", "atlas.cli.main"),
        ("from atlas.rng import Rng", "atlas.errors"),
        ("from benchmarks.tables import grid", "atlas.cli.main"),
        ("from atlas_paper.paper import PAPER", "atlas.cli.main"),
        ("from atlas.config import build", "atlas.checkpoint"),
    ],
)
def test_a_planted_import_is_seen(source: str, module: str) -> None:
    assert len(wrong_imports(source, module)) == 1


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("from atlas.errors import UsageError\nimport torch", "atlas.data.store"),
        ("from . import files\nfrom .files import read\nfrom ..errors import DataError", "atlas.data.store"),
        ("from atlas import __version__, training", "atlas.cli.main"),
        ("import atlasx, os.path", "atlas.errors"),
    ],
)
def test_a_good_import_is_left_alone(source: str, module: str) -> None:
    assert wrong_imports(source, module) == []


def test_relative_imports_of_a_package_start_at_itself() -> None:
    assert wrong_imports("from .idx import read\nfrom ..rng import Rng", "atlas.data", is_package=True) == []
    assert len(wrong_imports("from ..cli import main", "atlas.data", is_package=True)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "x = eval(text)",
        "exec(text)",
        "run = eval",
        "import pickle\npickle.load(file)",
        "import pickle as p\np.loads(data)",
        "from pickle import Unpickler as U\nclass Mine(U): ...",
        "import torch\ntorch.load(path, weights_only=True)",
        "from torch import load\nload(path)",
        "import yaml\nyaml.load(text)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "model.cuda()",
        "torch.zeros(3).cuda(0)",
    ],
)
def test_a_planted_unsafe_use_is_seen(source: str) -> None:
    assert unsafe_uses(source)


@pytest.mark.parametrize(
    ("call", "safe"),
    [
        ("torch.load(path, weights_only=True)", True),
        ("torch.load(path)", False),
        ("torch.load(path, weights_only=False)", False),
        ("torch.load(path, weights_only=flag)", False),
        ("(torch.load)(path, None, other(weights_only=True))", False),
    ],
)
def test_only_weights_are_told_from_other_pickles(call: str, safe: bool) -> None:
    (complaint,) = unsafe_uses(f"import torch\n{call}")
    assert complaint == f"2: {WEIGHTS_ONLY if safe else 'torch.load'}"


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "import pickle\npickle.dumps(1)",
        "np.load(path, allow_pickle=False)",
        "torch.cuda.is_available()",
        "from safetensors.torch import load\nload(data)",
        "text = 'eval(1)'  # eval(2)",
    ],
)
def test_a_safe_use_is_left_alone(source: str) -> None:
    assert unsafe_uses(source) == []


# Written in pieces, so that this file is not a finding itself.
@pytest.mark.parametrize(
    "path", ["/" + "home/ann/runs", "'/" + "Users/ann'", "file:///" + "opt/x", str(ROOT)]
)
def test_a_planted_machine_path_is_seen(path: str) -> None:
    assert machine_paths(f"fine\nfolder = {path}\n")[0].startswith("2: ")


@pytest.mark.parametrize(
    "text", ["https://a.org/home/x", "results/work/a", "~/work/x", "/usr/bin/env", "and/or"]
)
def test_a_harmless_path_is_left_alone(text: str) -> None:
    assert machine_paths(text) == []
