"""Keep evaluations, and set AutoAttack on a published model beside the original in docs/evaluation.md.

python -m scripts.evaluation_results keep EVALUATION NAME    # its small files to results/evaluation/NAME
python -m scripts.evaluation_results table                   # the table into docs/evaluation.md
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np

from atlas.evaluation.evaluation_folder import load_report
from benchmarks.tables import grid, markers_of, put_between_markers

ROOT = Path(__file__).parent.parent
KEPT, PAGE = ROOT / "results" / "evaluation", ROOT / "docs" / "evaluation.md"
RESULTS = KEPT / "wong-autoattack"
MARKERS = markers_of("wong")
ORIGINAL = {"clean": 98.3, "APGD-CE": 84.7, "APGD-T": 83.0, "FAB-T": 82.9, "Square": 80.1}
"""What the original AutoAttack leaves of the same images of the same model, in percent."""


def keep(evaluation: Path, name: str) -> None:
    (KEPT / name).mkdir(parents=True, exist_ok=True)
    for path in [*evaluation.glob("*.json"), evaluation / "timing.jsonl"]:
        shutil.copy(path, KEPT / name)
    for path in [evaluation / "clean.npz", *evaluation.glob("attack-*.npz")]:
        with np.load(path) as arrays:
            np.savez_compressed(KEPT / name / path.name, **arrays)


def table() -> str:
    report = load_report(RESULTS)
    head = [f"n = {report.n}", "original", "ours", "images fooled", "seconds"]
    rows = []
    for label, original in ORIGINAL.items():
        result = report.results.get(label)
        fooled = str(int(result.fooled.sum())) if result else ""
        seconds = f"{report.seconds[label]:.0f}" if result else ""
        rows.append([label, f"{original:.1f}%", str(report.scores[label]), fooled, seconds])
    return grid(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    tasks = parser.add_subparsers(dest="what", required=True)
    kept = tasks.add_parser("keep")
    kept.add_argument("evaluation", type=Path)
    kept.add_argument("name")
    tasks.add_parser("table")
    arguments = parser.parse_args()
    if arguments.what == "keep":
        keep(arguments.evaluation, arguments.name)
    else:
        put_between_markers(PAGE, table(), *MARKERS)


if __name__ == "__main__":
    main()
