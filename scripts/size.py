"""Print how large the code is, and which classes and passages exist twice.

python -m scripts.size
"""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHIPPED = ("src/atlas", "src/atlas_paper")
PARTS = (*SHIPPED, "benchmarks", "scripts", "tests")
LONGEST_COPY = 10
"""Lines that two places in the source may share."""


def python_files(*folders: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in listing.stdout.splitlines() if name.endswith(".py")]
    return [path for path in paths if path.exists()]


def lines(paths: list[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def classes_defined_twice(paths: list[Path]) -> dict[str, list[str]]:
    """Public classes of one name in several modules."""
    found = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def copies(paths: list[Path]) -> list[str]:
    """Passages of more than LONGEST_COPY lines, blank lines and imports aside, that stand in two places."""
    seen: dict[tuple[str, ...], str] = {}
    found, skip_until = list[str](), dict[Path, int]()
    for path in paths:
        text = [(number, line.strip()) for number, line in enumerate(path.read_text().splitlines(), 1)]
        code = [(number, line) for number, line in text if line and not line.startswith(("import ", "from "))]
        for k in range(len(code) - LONGEST_COPY):
            window = tuple(line for _, line in code[k : k + LONGEST_COPY + 1])
            place = f"{path.relative_to(ROOT)}:{code[k][0]}"
            first = seen.setdefault(window, place)
            if first != place and code[k][0] >= skip_until.get(path, 0):
                found.append(f"{first} and {place}")
                skip_until[path] = code[k + LONGEST_COPY][0] + 1
    return found


def main() -> None:
    shipped = python_files(*SHIPPED)
    for part in PARTS:
        paths = python_files(part)
        print(f"{part:16} {lines(paths):6} lines in {len(paths):3} files")
    print(f"{'shipped':16} {lines(shipped):6} lines in {len(shipped):3} files")
    print(f"{'all Python':16} {lines(python_files('.')):6} lines in {len(python_files('.')):3} files")
    twice = classes_defined_twice(shipped)
    print(f"classes defined twice: {len(twice)}")
    for name, places in twice.items():
        print(f"  {name}: {', '.join(places)}")
    shared = copies(shipped)
    print(f"passages of more than {LONGEST_COPY} lines in two places: {len(shared)}")
    for pair in shared:
        print(f"  {pair}")


if __name__ == "__main__":
    main()
