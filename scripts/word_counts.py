"""Print how many words README and the pages of the documentation have. Generated parts do not count.

python -m scripts.word_counts
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOTAL, PAGE = 14_000, 1200
SHORT = {"docs/tutorials": 600, "docs/how-to": 600, "docs/results": 600}
"""The most words of all pages together, of any page, and of those in a folder."""


def words(path: Path) -> int:
    """Code, tables and directives included; not where links lead, nor the bars of tables."""
    text = re.sub(r"\]\([^)]*\)", "]", path.read_text("utf-8"))
    return sum(any(map(str.isalnum, word)) for word in text.split())


def counts() -> dict[str, int]:
    """Of each page, the README first, which is no page of the site."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): words(path) for path in paths}


def most(page: str) -> int:
    return SHORT.get(str(Path(page).parent), PAGE)


def main() -> None:
    readme, *pages = counts().items()
    print(f"{readme[1]:6} {readme[0]}")
    for page, count in pages:
        print(f"{count:6} {page}" + f" (at most {most(page)})" * (count > most(page)))
    print(f"{sum(count for _, count in pages):6} in all, at most {TOTAL}")


if __name__ == "__main__":
    main()
