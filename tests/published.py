"""What is published: pages, the results behind them, and the scripts that put one into the other."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def between(page: str, begin: str, end: str) -> str:
    text = (ROOT / page).read_text()
    assert text.count(begin) == text.count(end) == 1
    return text.partition(begin)[2].partition(end)[0].strip()


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks up its module there
    spec.loader.exec_module(module)
    return module
