"""`atlas demo`: the paper's comparison of one-step methods, scaled down to minutes on the embedded data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.table import Table
from typer import Option

from atlas import data
from atlas.attacks import PGD, Attack
from atlas.cli.console import console, say
from atlas.config import fingerprint
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


def demo(out: Annotated[Path, Option(help="Where to write.")] = Path("runs/demo")) -> None:
    """Train one-step ADV, TRADES and ATLAS on the embedded MNIST subset, and attack all three.

    A few minutes on two cores. PGD-20 is the weak attack of the paper's validation. The margin attack takes
    larger steps and several restarts: the difference between the two is what a weak attack hides. The demo
    ends with a report: one page to look at.
    """
    say(f"Training three models on real digits; writing to {out}. Ctrl-C saves; run again to resume.")
    test = data.load("mnist-mini", train=False)
    test = test.subset(slice(None, None, max(1, len(test) // IMAGES)))
    title = f"one-step methods: accuracy [95% interval] on {len(test)} test images"
    table = Table(
        "", "clean", *ATTACKS, "training", title=title, title_justify="left", box=None, pad_edge=False
    )
    rows = []
    for number, (method, name) in enumerate(METHODS.items(), 1):  # what is in their folders already is kept
        say(f"\nModel {number} of {len(METHODS)}: {method}, in {out / name}")
        config = RunConfig.of(load_preset(name)[1])
        result = train(config, out / name)
        task = Evaluation(result.model, test, Plan(config.threat, ATTACKS))
        report = task.run(out / name / "evaluations" / f"demo-{fingerprint(task.about)[:8]}")
        robust = {attack: asdict(report.score(attack)) for attack in ATTACKS}
        seconds = result.seconds
        rows += [{"method": method, "clean": asdict(report.clean), "robust": robust, "seconds": seconds}]
        scores = [str(report.clean), *(str(report.score(attack)) for attack in ATTACKS)]
        table.add_row(method.removeprefix("one-step "), *scores, f"{seconds:.0f} s")
    write_atomic(out / "demo.json", (json.dumps(rows, indent=2) + "\n").encode())
    runs = collect([out / name for name in METHODS.values()])
    write_atomic(out / PAGE, write.page(runs, studied(runs), "atlas demo").encode())
    console.print(table)
    say(f"  {out / PAGE}  the report: open it in a browser")
    say(f"  {out / 'demo.json'}  the numbers")
    say(f"  {out / 'demo-*/'}  runs: weights, metrics, TensorBoard events")
    say(f"Next: open {out / PAGE}, or atlas evaluate {out / 'demo-atlas-1'} --suite autoattack --n 200")
