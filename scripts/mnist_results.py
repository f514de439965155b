"""Attack MNIST runs and put them into one table; what docs/mnist.md and results/mnist/ are made with.

python -m scripts.mnist_results attack RUN... [--n 1000]    # writes RUN/scores.json
python -m scripts.mnist_results keep RUN...                 # copies the small files to results/mnist/
python -m scripts.mnist_results write                       # puts results/mnist/ into docs/mnist.md
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path

from atlas import data
from atlas.attacks import PGD, Attack
from atlas.evaluation import Score, evaluate
from atlas.runs import Run
from atlas.training import load_config, load_model
from benchmarks.tables import grid, markers_of, put_between_markers

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "results" / "mnist", ROOT / "docs" / "mnist.md"
KEPT = ("config.json", "metrics.jsonl", "timing.jsonl", "scores.json")
ATTACKS: dict[str, tuple[Attack, bool]] = {
    "PGD-20": (PGD(steps=20, step_size=0.01), True),
    "PGD-1000": (PGD(steps=1000, step_size=0.01), False),
    "margin 5x50": (PGD(steps=50, step_size=0.1, decay=True, objective="margin", restarts=5), False),
}
"""Each attack, and whether it runs on the whole test set."""


def attack(run: Path, n: int) -> None:
    config, model = load_config(run), load_model(run)
    test = data.load(config.data, train=False)
    scores = {}
    for name, (each, whole) in ATTACKS.items():
        report = evaluate(model, test, config.threat, attacks={name: each}, n=None if whole else n)
        scores[name] = asdict(report.score(name))
        if whole:
            scores["clean"] = asdict(report.clean)
    (run / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")


def keep(run: Path) -> None:
    folder = RESULTS / run.name
    folder.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        shutil.copy(run / name, folder / name)
    config = load_config(run)
    if (config.data, config.model) == ("mnist", "cnn-small"):  # others are too large, or no result
        shutil.copy(run / "best.safetensors", folder / "best.safetensors")


def row(run: Path) -> list[str]:
    epochs = Run(run).epochs
    best = max(epochs, key=lambda r: r["val_robust"])
    minutes = Run(run).seconds / 60
    scores = {k: Score(**v) for k, v in json.loads((run / "scores.json").read_text()).items()}
    cells = [str(scores[name]) for name in ("clean", *ATTACKS)]
    course = f"{best['val_robust']:.1%} at {best['epoch'] + 1} of {len(epochs)}"
    jacobians = f"{best['jacobian']:.3g} / {epochs[-1]['jacobian']:.3g}"
    return [f"`{run.name}`", course, jacobians, *cells, f"{minutes:.0f} min"]


def sizes(runs: list[Path], name: str) -> str:
    """How many images this column was measured on: one number, or an error."""
    (n,) = {json.loads((run / "scores.json").read_text())[name]["n"] for run in runs}
    return f"{n:,}"


def table(data_set: str) -> str:
    """The kept runs on this data set as Markdown."""
    runs = [path.parent for path in RESULTS.glob("*/scores.json")]
    runs = sorted(run for run in runs if load_config(run).data == data_set)
    columns = [f"{name} (n = {sizes(runs, name)})" for name in ("clean", *ATTACKS)]
    head = ["run", "best validation, epoch", "J² best / last", *columns, "training"]
    return grid(head, [row(run) for run in runs])


def write() -> None:
    """Replace the tables of the page, each between its two markers."""
    for data_set in ("mnist", "mnist-mini"):
        put_between_markers(PAGE, table(data_set), *markers_of(data_set))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["attack", "keep", "write"])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--n", type=int, default=1000, help="test images for the costly attacks")
    options = parser.parse_args()
    if options.what == "write":
        write()
    for run in options.runs:
        attack(run, options.n) if options.what == "attack" else keep(run)


if __name__ == "__main__":
    main()
