"""`atlas bench`: what things cost."""

from __future__ import annotations

import typer

from atlas.cli.bench_attack import attack
from atlas.cli.bench_cost import cost
from atlas.cli.bench_growth import growth
from atlas.cli.bench_peers import peers
from atlas.cli.bench_scale import scale
from atlas.cli.bench_step import step
from atlas.cli.bench_time import time

app = typer.Typer(no_args_is_help=True, help="What training and attacks cost, as ratios measured in one run.")


@app.callback()
def about() -> None:
    """What training and attacks cost, as ratios measured in one run."""


app.command()(step)
app.command()(peers)
app.command()(growth)
app.command()(time)
app.command()(attack)
app.command()(scale)
app.command()(cost)
