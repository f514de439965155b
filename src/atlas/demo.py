"""The demo: the paper's comparison of one-step methods, scaled down to minutes on the embedded data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from atlas import data
from atlas.attacks import PGD, Attack
from atlas.config import fingerprint
from atlas.evaluation import Score
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.plan import Plan
from atlas.files import write_atomic
from atlas.presets import load_preset
from atlas.reports import page, write
from atlas.reports.collect import collect
from atlas.training import Result, RunConfig, train

METHODS = {"one-step ADV": "demo-adv-1", "one-step TRADES": "demo-trades-1", "one-step ATLAS": "demo-atlas-1"}
ATTACKS: dict[str, Attack] = {
    "PGD-20": PGD(steps=20, step_size=0.01),
    "margin 3x50": PGD(steps=50, step_size=0.1, decay=True, objective="margin", restarts=3),
}
"""The paper's weak attack, and a stronger one: on MNIST PGD-20 moves 0.2 at most in a ball of 0.3."""
IMAGES = 1000
PAGE = "report.html"


@dataclass(frozen=True)
class Row:
    """One line of the demo's table."""

    method: str
    clean: Score
    robust: dict[str, Score]
    seconds: float
    """Of training."""


def run_demo(folder: Path, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Train and attack the three methods in `folder`; finished trainings found there are not repeated.

    `say` is told what begins.
    """
    test = data.load("mnist-mini", train=False)
    test = test.subset(slice(None, None, max(1, len(test) // IMAGES)))
    results: dict[str, Result] = {}
    rows = []
    for number, (label, name) in enumerate(METHODS.items(), 1):
        config = RunConfig.of(load_preset(name)[1])
        say(f"\nModel {number} of {len(METHODS)}: {label}, in {folder / name}")
        results[label] = train(config, folder / name)
        rows.append(_attack(label, config, results[label], test, folder / name))
    _write(folder, rows)
    _draw(folder / "demo.png", results, rows)
    _report(folder)
    return rows


def _attack(label: str, config: RunConfig, result: Result, test: data.Images, run: Path) -> Row:
    """Kept in the run's folder, where the report finds it."""
    task = Evaluation(result.model, test, Plan(config.threat, ATTACKS))
    report = task.run(run / "evaluations" / f"demo-{fingerprint(task.about)[:8]}")
    return Row(label, report.clean, {name: report.score(name) for name in ATTACKS}, result.seconds)


def _report(folder: Path) -> None:
    """The page of the three runs."""
    runs = collect([folder / name for name in METHODS.values()])
    write_atomic(folder / PAGE, page.render(runs, write.studied(runs), "atlas demo").encode())


def _write(folder: Path, rows: list[Row]) -> None:
    numbers = json.dumps([asdict(row) for row in rows], indent=2) + "\n"
    write_atomic(folder / "demo.json", numbers.encode())
    write_atomic(folder / "demo.md", markdown(rows).encode())


def markdown(rows: list[Row]) -> str:
    """The table: accuracy with its 95% interval."""
    head = [f"n = {rows[0].clean.n}", "clean", *ATTACKS, "training"]
    lines = [
        [row.method, *map(str, [row.clean, *row.robust.values()]), f"{row.seconds:.0f} s"] for row in rows
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *lines])


def _draw(path: Path, results: dict[str, Result], rows: list[Row]) -> None:
    """Validation robust accuracy by epoch, and the table as bars with their intervals."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for label, result in results.items():
        epochs = [record["epoch"] + 1 for record in result.epochs]
        left.plot(epochs, [100 * record["val_robust"] for record in result.epochs], label=label, lw=2)
    left.set(xlabel="epoch", ylabel="validation robust accuracy (%)", ylim=(0, 100))
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(frameon=False)
    columns = ["clean", *ATTACKS]
    for k, row in enumerate(rows):
        scores = [row.clean, *row.robust.values()]
        heights = [100 * s.rate for s in scores]
        errors = [
            [h - 100 * s.interval[0], 100 * s.interval[1] - h] for h, s in zip(heights, scores, strict=True)
        ]
        places = [c + 0.27 * (k - 1) for c in range(len(columns))]
        bars = right.bar(
            places, heights, 0.25, yerr=list(zip(*errors, strict=True)), capsize=2, label=row.method
        )
        right.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
    right.set(xticks=range(len(columns)), xticklabels=columns, ylabel="test accuracy (%)", ylim=(0, 108))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
