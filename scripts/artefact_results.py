"""Keep what `atlas reproduce` wrote: tables, figure, the small files of the runs, and the table on a page.

python -m scripts.artefact_results runs/reproduce/results/table1-mnist-cpu docs/mnist.md table1
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tables import markers_of, put_between_markers

ROOT = Path(__file__).parent.parent
KEPT = (".csv", ".json", ".md", ".svg", ".tex")
OF_A_RUN = ("config.json", "metrics.jsonl", "origin.json", "timing.jsonl")


def keep(made: Path, results: Path, weights: bool) -> Path:
    """Copy the artefact in `made`, a folder of its workspace, to one of the same name: its Markdown file."""
    kept = results / made.name
    kept.mkdir(parents=True, exist_ok=True)
    for path in (path for path in made.iterdir() if path.suffix in KEPT):
        shutil.copy(path, kept)
    (page,) = kept.glob("*.md")
    for run in runs(page.with_suffix(".json"), made.parents[1] / "runs"):
        folder = kept / "runs" / run.name
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*OF_A_RUN, *(("best.safetensors",) if weights else ())):
            shutil.copy(run / name, folder)
    return page


def runs(table: Path, folder: Path) -> Iterator[Path]:
    """The folders of the rows' runs that were trained in the workspace; others have a place of their own."""
    for row in json.loads(table.read_text())["rows"]:
        for run in row["runs"]:
            yield from folder.glob(f"*-{run['config_hash'][:8]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("made", type=Path, help="the artefact's folder in its workspace")
    parser.add_argument("page", type=Path)
    parser.add_argument("marker", help="of the lines <!-- begin: MARKER --> and <!-- end: MARKER --> there")
    parser.add_argument("--weights", action="store_true", help="the best weights too")
    options = parser.parse_args()
    text = keep(options.made, ROOT / "results", options.weights).read_text().strip()
    put_between_markers(options.page, text, *markers_of(options.marker))


if __name__ == "__main__":
    main()
