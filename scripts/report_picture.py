"""Take the picture of the README, with Chromium, of a report that `atlas report` or `atlas demo` wrote.

python -m scripts.report_picture runs/demo/report.html     # writes docs/report.png
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.browser.chromium import Chromium, find

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, HEIGHT = 1100, 760
COLOURS = 128
"""Enough for a page, and a third of the bytes."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path)
    page = parser.parse_args().page
    program = find()
    if program is None:
        sys.exit("no Chromium here: run scripts/system_packages.sh chromium, or set CHROMIUM to a program")
    with tempfile.TemporaryDirectory() as profile, Chromium(program, Path(profile)) as browser:
        browser.look(WIDTH, HEIGHT)
        browser.open(page)
        keep(browser.picture(), DOCS / "report.png")


def keep(png: bytes, path: Path) -> None:
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
