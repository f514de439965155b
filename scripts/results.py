"""Keep what was measured in results/, and put its tables into README and docs.

python -m scripts.results artefact runs/reproduce/results/table1-mnist-cpu docs/mnist.md table1 [--weights]
python -m scripts.results evaluation EVALUATION NAME    # its small files to results/evaluation/NAME
python -m scripts.results attack RUN [--n 1000]         # attacks a run on MNIST, writes RUN/scores.json
python -m scripts.results run RUN                       # its small files to results/mnist/
python -m scripts.results write                         # all tables of this script into their pages
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from atlas import data
from atlas.attacks import PGD, Attack
from atlas.evaluation import Score, evaluate
from atlas.evaluation.compare import compared
from atlas.evaluation.evaluation_folder import load_report
from atlas.runs import Run
from atlas.training import load_config, load_model
from benchmarks.tables import grid, markers_of, put_between_markers

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
OF_AN_ARTEFACT = (".csv", ".json", ".md", ".svg", ".tex")
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
CNN = "table1-mnist-cpu-cnn-trained-bfloat16-all-attacked-bfloat16"
ORDER = {
    "MNIST, `cnn-small`": (["table1-mnist-cpu"], 1),
    "MNIST, `cnn`": ([CNN, f"{CNN}-more"], 1),
    "MNIST, `cnn-small`, tuned, 10 epochs": (["table1-mnist-cpu-tuned-ten"], 1),
    "MNIST, `cnn-small`, tuned, 30 epochs": (["table1-mnist-cpu-tuned"], 1),
    "CIFAR-10, small": (["table1-cifar10-cpu"], 1),
    "CIFAR-100, small": (["table1-cifar100-cpu"], 1),
    "MNIST, `cnn-small`, twenty-step": (["table1-mnist-cpu"], 20),
    "MNIST, `cnn-small`, twenty-step, tuned, 30 epochs": (["table1-mnist-cpu-tuned-twenty"], 20),
}
"""Lines of the table of orders: the folders that have its rows, and the steps of their adversaries."""
METHODS, ATTACK = ("adv", "trades", "atlas"), "AutoAttack"
LEAST_P = 1e-6
"""Smaller ones are all shown as this: of one training each they would promise too much."""


# --- keeping ---


def copy(files: Iterable[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        shutil.copy(path, folder)


def keep_artefact(made: Path, results: Path, weights: bool) -> Path:
    """Copy the artefact in `made`, a folder of its workspace, to one of the same name: its Markdown file.

    With it go the small files of its rows' runs that were trained in the workspace.
    """
    kept = results / made.name
    copy((path for path in made.iterdir() if path.suffix in OF_AN_ARTEFACT), kept)
    (page,) = kept.glob("*.md")
    for row in json.loads(page.with_suffix(".json").read_text())["rows"]:
        for run in row["runs"]:
            for folder in (made.parents[1] / "runs").glob(f"*-{run['config_hash'][:8]}"):
                names = (*OF_A_RUN, "origin.json", *(("best.safetensors",) if weights else ()))
                copy((folder / name for name in names), kept / "runs" / folder.name)
    return page


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


def order_table() -> str:
    """The order of the methods under AutoAttack, over all tables of results/."""
    quick = {method: load_report(RESULTS / "evaluation" / f"quick-{method}-1") for method in METHODS}
    (n,) = {report.n for report in quick.values()}
    scores = [report.worst for report in quick.values()]
    accuracies = [_accuracy(100 * s.rate, [100 * end for end in s.interval]) for s in scores]
    pairs = [compared(quick["atlas"], quick[other])["worst case"][2] for other in METHODS[:2]]
    tests = [_difference(100 * pair.difference, pair.p_value) for pair in pairs]
    lines = [["MNIST, `cnn-small`, quick settings, 15 epochs", str(n), *accuracies, *tests]]
    lines += [[name, *_order(folders, steps)] for name, (folders, steps) in ORDER.items()]
    head = [f"accuracy in % under {ATTACK}", "n", "ADV", "TRADES", "ATLAS", "ATLAS - ADV", "ATLAS - TRADES"]
    return grid(head, lines)


def _order(folders: Sequence[str], steps: int) -> list[str]:
    paths = [path for folder in folders for path in (RESULTS / folder).glob("table1-*.json")]
    parts = [json.loads(path.read_text()) for path in paths]
    known = {row["key"]: row for part in parts for row in part["rows"] if _ours(row) is not None}
    rows = {method: known[f"{method}-{steps}"] for method in METHODS}
    cells = [row["cells"][ATTACK] for row in rows.values()]
    name = "paired" if steps == 1 else "paired-multi-step"
    lines = [line for part in parts for line in part["tables"].get(name, {}).get("rows", [])]
    tests = {(line[1], line[2]): line for line in lines if line[0] == ATTACK}
    # One seed of each: a paired test is of one.
    ((n, _),) = {(seed["n"], seed["seed"]) for cell in cells for seed in cell["seeds"]}
    accuracies = [_accuracy(cell["ours"], cell["interval"]) for cell in cells]
    return [str(n), *accuracies, *(_tested(tests.get((rows[other]["label"], "0"))) for other in METHODS[:2])]


def _ours(row: dict[str, Any]) -> Any:
    return row["cells"].get(ATTACK, {}).get("ours")


def _tested(line: list[Any] | None) -> str:
    """None was made where the rows' verdicts are not in one table, or where nobody asked then."""
    return "no paired test" if line is None else _difference(line[6]["value"], line[7]["value"])


def _accuracy(percent: float, interval: Sequence[float]) -> str:
    return f"{percent:.2f} [{interval[0]:.1f}, {interval[1]:.1f}]"


def _difference(points: float, p: float) -> str:
    return f"{points:+.2f}, " + (f"p < {LEAST_P:.0e}" if p < LEAST_P else f"p = {p:.2g}")


TABLES: dict[tuple[str, str], Callable[[], str]] = {
    ("docs/mnist.md", "mnist"): partial(mnist_table, "mnist"),
    ("docs/mnist.md", "mnist-mini"): partial(mnist_table, "mnist-mini"),
    ("docs/evaluation.md", "wong"): wong_table,
    ("README.md", "order"): order_table,
}
"""By page and marker."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    tasks = parser.add_subparsers(dest="what", required=True)
    artefact = tasks.add_parser("artefact")
    artefact.add_argument("folder", type=Path, help="the artefact's folder in its workspace")
    artefact.add_argument("page", type=Path)
    artefact.add_argument("marker", help="of the lines <!-- begin: MARKER --> and <!-- end: MARKER --> there")
    artefact.add_argument("--weights", action="store_true", help="the best weights too")
    evaluation = tasks.add_parser("evaluation")
    evaluation.add_argument("folder", type=Path)
    evaluation.add_argument("name")
    for name in ("attack", "run"):
        tasks.add_parser(name).add_argument("folder", type=Path)
    tasks.choices["attack"].add_argument("--n", type=int, default=1000, help="test images, costly attacks")
    tasks.add_parser("write")
    given = parser.parse_args()
    match given.what:
        case "artefact":
            text = keep_artefact(given.folder, RESULTS, given.weights).read_text().strip()
            put_between_markers(given.page, text, *markers_of(given.marker))
        case "evaluation":
            keep_evaluation(given.folder, given.name)
        case "attack":
            attack(given.folder, given.n)
        case "run":
            keep_run(given.folder)
        case "write":
            for (page, marker), table in TABLES.items():
                put_between_markers(ROOT / page, table(), *markers_of(marker))


if __name__ == "__main__":
    main()
