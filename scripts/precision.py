"""Does bfloat16 cost accuracy? Three seeds of two methods in both arithmetics on MNIST, attacked alike.

python scripts/precision.py run [FOLDER]     # trains, attacks, writes results/precision.json; resumable
python scripts/precision.py write            # puts the table into docs/speed.md
"""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

from scipy import stats

from atlas import data
from atlas.disk import write_atomic
from atlas.evaluation import evaluate
from atlas.reproduce.workspace import commit
from atlas.training import load_config, load_model

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "results" / "precision.json", ROOT / "docs" / "speed.md"
MARKERS = ("<!-- begin: precision -->", "<!-- end: precision -->")
METHODS, SEEDS = ("adv-1", "atlas-1"), (0, 1, 2)
SETTINGS = {"float32": (), "bfloat16": ("--precision", "bfloat16", "--set", "training.channels_last=true")}
COLUMNS = ("clean", "PGD-20", "Un-T 3x50", "worst case")
N = 2000


def run(folder: Path) -> None:
    records = []
    for method, seed, name in product(METHODS, SEEDS, SETTINGS):
        out = folder / f"{method}-{name}-{seed}"
        what = ["--resume", str(out)]
        if not (out / "config.json").exists():
            what = [f"mnist-quick-{method}", "--seed", str(seed), *SETTINGS[name], "--out", str(out)]
        subprocess.run([sys.executable, "-m", "atlas", "train", *what], check=True)
        records.append({"method": method, "seed": seed, "settings": name, **scores(out)})
    write_atomic(RESULTS, (json.dumps({"n": N, "runs": records}, indent=1) + "\n").encode())


def scores(out: Path) -> dict[str, Any]:
    """What is left of the first N test images under each attack, from the run's folder once it is known."""
    kept = out / "scores.json"
    if not kept.exists():
        config = load_config(out)
        test = data.load(config.data, train=False)
        report = evaluate(load_model(out), test, config.threat, suite="quick", n=N, progress=False)
        right = {name: score.right for name, score in report.scores.items()}
        about = {"hash": json.loads((out / "config.json").read_text())["hash"], "commit": commit()}
        write_atomic(kept, json.dumps(about | right).encode())
    return dict(json.loads(kept.read_text()))


def table() -> str:
    """For each method and attack: the mean of the seeds in both arithmetics, and their difference."""
    found = json.loads(RESULTS.read_text())
    lines = ["| method | attack | " + " | ".join(SETTINGS) + " | difference |", "|" + "---|" * 5]
    for method, attack in product(METHODS, COLUMNS):
        rates = {
            name: [
                100 * r[attack] / found["n"]
                for r in found["runs"]
                if r["method"] == method and r["settings"] == name
            ]
            for name in SETTINGS
        }
        means = [f"{sum(v) / len(v):.2f} ({min(v):.2f} to {max(v):.2f})" for v in rates.values()]
        lines.append(f"| {method} | {attack} | " + " | ".join(means) + f" | {difference(*rates.values())} |")
    seeds = len({r["seed"] for r in found["runs"]})
    at = ", ".join(sorted({str(r["commit"])[:7] for r in found["runs"]}))
    return "\n".join([*lines, "", f"n = {found['n']}, {seeds} seeds, at {at}."])


def difference(one: list[float], other: list[float]) -> str:
    """Of the means, with Student's 95% interval of the seeds' own differences: both start alike."""
    interval = stats.ttest_rel(other, one).confidence_interval()
    mean = sum(other) / len(other) - sum(one) / len(one)
    return f"{mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


def write() -> None:
    before, begin, rest = PAGE.read_text().partition(f"{MARKERS[0]}\n")
    _, end, after = rest.partition(MARKERS[1])
    PAGE.write_text(f"{before}{begin}{table()}\n{end}{after}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", *where]:
            run(Path(where[0] if where else "runs/precision"))
        case ["write"]:
            write()
        case _:
            sys.exit(__doc__)
