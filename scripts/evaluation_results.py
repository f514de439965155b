"""Set AutoAttack on a published model beside the original; docs/evaluation.md is made with it.

python scripts/evaluation_results.py keep EVALUATION    # copies its small files to results/evaluation/
python scripts/evaluation_results.py table              # puts the table into docs/evaluation.md
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from atlas.bench.report import grid, markers_of, put_between_markers
from atlas.evaluation.load import load_report

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "results" / "evaluation" / "wong-autoattack", ROOT / "docs" / "evaluation.md"
MARKERS = markers_of("wong")
ORIGINAL = {"clean": 98.3, "APGD-CE": 84.7, "APGD-T": 83.0, "FAB-T": 82.9, "Square": 80.1}
"""What the original AutoAttack leaves of the same images of the same model, in percent."""


def keep(evaluation: Path) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    for path in [*evaluation.glob("*.json"), *evaluation.glob("*.npz"), evaluation / "timing.jsonl"]:
        shutil.copy(path, RESULTS / path.name)


def table() -> str:
    report = load_report(RESULTS)
    head = [f"n = {report.n}", "original", "ours", "images fooled", "seconds"]
    rows = []
    for label, wanted in ORIGINAL.items():
        result = report.results.get(label)
        fooled = str(int(result.fooled.sum())) if result else ""
        seconds = f"{report.seconds[label]:.0f}" if result else ""
        rows.append([label, f"{wanted:.1f}%", str(report.scores[label]), fooled, seconds])
    return grid(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["keep", "table"])
    parser.add_argument("evaluation", nargs="?", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "keep":
        keep(arguments.evaluation)
    else:
        put_between_markers(PAGE, table(), *MARKERS)


if __name__ == "__main__":
    main()
