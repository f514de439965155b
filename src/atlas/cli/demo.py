"""`atlas demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from atlas.cli.console import console, say
from atlas.demo import ATTACKS, PAGE, run_demo


def demo(out: Annotated[Path, typer.Option(help="Where to write.")] = Path("runs/demo")) -> None:
    """Train one-step ADV, TRADES and ATLAS on the embedded MNIST subset, and attack all three.

    A few minutes on two cores. PGD-20 is the weak attack of the paper's validation; the margin attack
    takes larger steps, several times: the difference between the two is what a weak attack hides. It ends
    with a report: one page to look at.
    """
    say(f"Training three models on real digits; writing to {out}. Ctrl-C saves; run again to resume.")
    rows = run_demo(out, say)
    title = f"one-step methods: accuracy [95% interval] on {rows[0].clean.n} test images"
    table = Table(
        "", "clean", *ATTACKS, "training", title=title, title_justify="left", box=None, pad_edge=False
    )
    for row in rows:
        scores = map(str, [row.clean, *row.robust.values()])
        table.add_row(row.method.removeprefix("one-step "), *scores, f"{row.seconds:.0f} s")
    console.print(table)
    for name, what in {
        PAGE: "the report: open it in a browser",
        "demo.png": "the picture",
        "demo.json": "the numbers",
        "demo-*/": "runs: weights, metrics, TensorBoard events",
    }.items():
        say(f"  {out / name}  {what}")
    say(f"Next: open {out / PAGE}, or atlas evaluate {out / 'demo-atlas-1'} --suite autoattack --n 200")
