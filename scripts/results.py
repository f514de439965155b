"""Keep in results/ what was measured: artefacts of the paper, evaluations and runs on MNIST.

python -m scripts.results artefact runs/reproduce/results/table1-mnist-cpu [--weights]
python -m scripts.results evaluation EVALUATION NAME    # its small files to results/evaluation/NAME
python -m scripts.results attack RUN [--n 1000]         # attacks a run on MNIST, writes RUN/scores.json
python -m scripts.results run RUN                       # its small files to results/mnist/
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from atlas import data
from atlas.attacks import PGD, Attack
from atlas.evaluation import Score, evaluate
from atlas.evaluation.evaluation_folder import load_report
from atlas.runs import Run
from atlas.training import load_config, load_model
from benchmarks.tables import grid

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
OF_AN_ARTEFACT = (".json", ".svg")
OF_A_RUN = ("config.json", "metrics.jsonl", "timing.jsonl")
ATTACKS: dict[str, tuple[Attack, bool]] = {
    "PGD-20": (PGD(steps=20, step_size=0.01), True),
    "PGD-1000": (PGD(steps=1000, step_size=0.01), False),
    "margin 5x50": (PGD(steps=50, step_size=0.1, decay=True, objective="margin", restarts=5), False),
}
"""Each attack on runs on MNIST, and whether it runs on the whole test set."""
WONG = RESULTS / "evaluation" / "wong-autoattack"
ORIGINAL = {"clean": 98.3, "APGD-CE": 84.7, "APGD-T": 83.0, "FAB-T": 82.9, "Square": 80.1}
"""What the original AutoAttack leaves of the same images of the same published model, in percent."""


# --- keeping ---


def copy(files: Iterable[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        shutil.copy(path, folder)


def keep_artefact(made: Path, results: Path, weights: bool) -> None:
    """Copy the artefact in `made`, a folder of its workspace, to one of the same name.

    With it go the small files of its rows' runs that were trained in the workspace.
    """
    kept = results / made.name
    copy((path for path in made.iterdir() if path.suffix in OF_AN_ARTEFACT), kept)
    (table,) = kept.glob("*.json")
    for row in json.loads(table.read_text())["rows"]:
        for run in row["runs"]:
            for folder in (made.parents[1] / "runs").glob(f"*-{run['config_hash'][:8]}"):
                names = (*OF_A_RUN, "origin.json", *(("best.safetensors",) if weights else ()))
                copy((folder / name for name in names), kept / "runs" / folder.name)


def keep_evaluation(evaluation: Path, name: str) -> None:
    folder = RESULTS / "evaluation" / name
    copy([*evaluation.glob("*.json"), evaluation / "timing.jsonl"], folder)
    for path in [evaluation / "clean.npz", *evaluation.glob("attack-*.npz")]:
        with np.load(path) as arrays:
            np.savez_compressed(folder / path.name, **arrays)


def keep_run(run: Path) -> None:
    config = load_config(run)
    small = (config.data, config.model) == ("mnist", "cnn-small")  # others are too large, or no result
    names = (*OF_A_RUN, "scores.json", *(("best.safetensors",) if small else ()))
    copy((run / name for name in names), RESULTS / "mnist" / run.name)


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


# --- tables ---


def mnist_table(data_set: str) -> str:
    """The kept runs on this data set."""
    runs = [Run(path.parent) for path in sorted(RESULTS.glob("mnist/*/scores.json"))]
    runs = [run for run in runs if load_config(run.path).data == data_set]
    columns, lines = ("clean", *ATTACKS), []
    sizes: dict[str, set[int]] = {name: set() for name in columns}
    for run in runs:
        table = json.loads((run.path / "scores.json").read_text())
        scores = {name: Score(**table[name]) for name in columns}
        epochs = run.epochs
        best = max(epochs, key=lambda record: record["val_robust"])
        course = f"{best['val_robust']:.1%} at {best['epoch'] + 1} of {len(epochs)}"
        jacobians = f"{best['jacobian']:.3g} / {epochs[-1]['jacobian']:.3g}"
        minutes = f"{run.seconds / 60:.0f} min"
        lines.append([f"`{run.path.name}`", course, jacobians, *map(str, scores.values()), minutes])
        for name, score in scores.items():
            sizes[name].add(score.n)
    heads = [f"{name} (n = {n:,})" for name, (n,) in sizes.items()]  # one number, or this is an error
    return grid(["run", "best validation, epoch", "J² best / last", *heads, "training"], lines)


def wong_table() -> str:
    report = load_report(WONG)
    rows = []
    for label, original in ORIGINAL.items():
        result = report.results.get(label)
        fooled = str(int(result.fooled.sum())) if result else ""
        seconds = f"{report.seconds[label]:.0f}" if result else ""
        rows.append([label, f"{original:.1f}%", str(report.scores[label]), fooled, seconds])
    return grid([f"n = {report.n}", "original", "ours", "images fooled", "seconds"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    tasks = parser.add_subparsers(dest="what", required=True)
    artefact = tasks.add_parser("artefact")
    artefact.add_argument("folder", type=Path, help="the artefact's folder in its workspace")
    artefact.add_argument("--weights", action="store_true", help="the best weights too")
    evaluation = tasks.add_parser("evaluation")
    evaluation.add_argument("folder", type=Path)
    evaluation.add_argument("name")
    for name in ("attack", "run"):
        tasks.add_parser(name).add_argument("folder", type=Path)
    tasks.choices["attack"].add_argument("--n", type=int, default=1000, help="test images, costly attacks")
    given = parser.parse_args()
    match given.what:
        case "artefact":
            keep_artefact(given.folder, RESULTS, given.weights)
        case "evaluation":
            keep_evaluation(given.folder, given.name)
        case "attack":
            attack(given.folder, given.n)
        case "run":
            keep_run(given.folder)


if __name__ == "__main__":
    main()
