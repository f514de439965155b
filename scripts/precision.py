"""Does bfloat16 cost accuracy? Three seeds of two methods, with and without, on MNIST, attacked alike.

python -m scripts.precision run [FOLDER]     # trains, attacks, writes results/precision.json; resumable
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
from atlas.evaluation import evaluate
from atlas.files import write_atomic
from atlas.training import load_config, load_model
from atlas_paper.workspace import commit
from benchmarks.tables import grid

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "precision.json"
ARITHMETICS = {"adv-1": ("bfloat16",), "atlas-1": ("bfloat16", "bfloat16-all")}
"""To be held against float32; ADV has no Jacobian."""
SEEDS = (0, 1, 2)
COLUMNS = ("clean", "PGD-20", "Un-T 3x50", "worst case")
N = 2000


def run(folder: Path) -> None:
    records = []
    for method, name, seed in [
        case for m, names in ARITHMETICS.items() for case in product([m], ("float32", *names), SEEDS)
    ]:
        out = folder / f"{method}-{name}-{seed}"
        what = ["--resume", str(out)]
        if not (out / "config.json").exists():
            how = ["--precision", name, "--set", f"training.channels_last={json.dumps(name != 'float32')}"]
            what = [f"mnist-quick-{method}", "--seed", str(seed), *how, "--out", str(out)]
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
    """For each method, arithmetic and attack: the means of the seeds, and their difference to float32."""
    found = json.loads(RESULTS.read_text())
    lines = []
    for method, names in ARITHMETICS.items():
        for name, attack in product(names, COLUMNS):
            both = [
                [
                    100 * r[attack] / found["n"]
                    for r in found["runs"]
                    if (r["method"], r["settings"]) == (method, which)
                ]
                for which in ("float32", name)
            ]
            means = [f"{sum(v) / len(v):.2f} ({min(v):.2f} to {max(v):.2f})" for v in both]
            lines.append([method, name, attack, *means, difference(*both)])
    seeds = len({r["seed"] for r in found["runs"]})
    at = ", ".join(sorted({str(r["commit"])[:7] for r in found["runs"]}))
    heads = ["method", "arithmetic", "attack", "float32", "in it", "difference"]
    return f"{grid(heads, lines)}\n\nn = {found['n']}, {seeds} seeds, at {at}."


def difference(one: list[float], other: list[float]) -> str:
    """Of the means, with Student's 95% interval of the seeds' own differences: both start alike."""
    interval = stats.ttest_rel(other, one).confidence_interval()
    mean = sum(other) / len(other) - sum(one) / len(one)
    return f"{mean:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", *where]:
            run(Path(where[0] if where else "runs/precision"))
        case _:
            sys.exit(__doc__)
