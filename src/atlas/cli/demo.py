"""`atlas demo`: the paper's comparison of one-step methods, scaled down to minutes on the embedded data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from atlas import data
from atlas.attacks import PGD, Attack
from atlas.cli.console import console, say
from atlas.config import fingerprint
from atlas.evaluation import Score
from atlas.evaluation.evaluate import Evaluation
from atlas.evaluation.plan import Plan
from atlas.files import write_atomic
from atlas.presets import load_preset
from atlas.reports import write
from atlas.reports.collect import collect
from atlas.reports.quick_attack import studied
from atlas.training import RunConfig, train

METHODS = {"one-step ADV": "demo-adv-1", "one-step TRADES": "demo-trades-1", "one-step ATLAS": "demo-atlas-1"}
ATTACKS: dict[str, Attack] = {
    "PGD-20": PGD(steps=20, step_size=0.01),
    "margin 3x50": PGD(steps=50, step_size=0.1, decay=True, objective="margin", restarts=3),
}
"""The paper's weak attack, and a stronger one: on MNIST PGD-20 moves 0.2 at most in a ball of 0.3."""
IMAGES = 1000
PAGE = "report.html"


@dataclass(frozen=True)
class DemoRow:
    """One row of the demo's table."""

    method: str
    clean: Score
    robust: dict[str, Score]
    seconds: float
    """Of training."""


def demo(out: Annotated[Path, typer.Option(help="Where to write.")] = Path("runs/demo")) -> None:
    """Train one-step ADV, TRADES and ATLAS on the embedded MNIST subset, and attack all three.

    A few minutes on two cores. PGD-20 is the weak attack of the paper's validation. The margin attack takes
    larger steps and several restarts: the difference between the two is what a weak attack hides. The demo
    ends with a report: one page to look at.
    """
    say(f"Training three models on real digits; writing to {out}. Ctrl-C saves; run again to resume.")
    test = data.load("mnist-mini", train=False)
    test = test.subset(slice(None, None, max(1, len(test) // IMAGES)))
    rows = [_row(out / name, label, number, test) for number, (label, name) in enumerate(METHODS.items(), 1)]
    write_atomic(out / "demo.json", (json.dumps([asdict(row) for row in rows], indent=2) + "\n").encode())
    runs = collect([out / name for name in METHODS.values()])
    write_atomic(out / PAGE, write.page(runs, studied(runs), "atlas demo").encode())
    title = f"one-step methods: accuracy [95% interval] on {rows[0].clean.n} test images"
    table = Table(
        "", "clean", *ATTACKS, "training", title=title, title_justify="left", box=None, pad_edge=False
    )
    for row in rows:
        scores = map(str, [row.clean, *row.robust.values()])
        table.add_row(row.method.removeprefix("one-step "), *scores, f"{row.seconds:.0f} s")
    console.print(table)
    say(f"  {out / PAGE}  the report: open it in a browser")
    say(f"  {out / 'demo.json'}  the numbers")
    say(f"  {out / 'demo-*/'}  runs: weights, metrics, TensorBoard events")
    say(f"Next: open {out / PAGE}, or atlas evaluate {out / 'demo-atlas-1'} --suite autoattack --n 200")


def _row(run: Path, label: str, number: int, test: data.Images) -> DemoRow:
    """Train and attack one model, unless its folder has that already."""
    say(f"\nModel {number} of {len(METHODS)}: {label}, in {run}")
    config = RunConfig.of(load_preset(run.name)[1])
    result = train(config, run)
    task = Evaluation(result.model, test, Plan(config.threat, ATTACKS))
    report = task.run(run / "evaluations" / f"demo-{fingerprint(task.about)[:8]}")
    return DemoRow(label, report.clean, {name: report.score(name) for name in ATTACKS}, result.seconds)
