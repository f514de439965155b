"""`atlas reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from atlas.cli.console import console
from atlas.errors import Interrupted, choose
from atlas.reproduce.artefacts import ARTEFACTS
from atlas.reproduce.findings import gather
from atlas.reproduce.lab import Lab
from atlas.reproduce.order import Order
from atlas.reproduce.scales import SCALES
from atlas.reproduce.workspace import Workspace
from atlas.reproduce.write import write


def reproduce(
    artefact: Annotated[
        str | None, typer.Argument(help="A table or figure of the paper: see --list.")
    ] = None,
    scale: Annotated[
        str,
        typer.Option(help="paper: to the letter; cpu: a network and images for two cores; smoke: seconds."),
    ] = "cpu",
    seeds: Annotated[int, typer.Option(help="Train every row from so many seeds, 0, 1, ...")] = 1,
    rows: Annotated[
        list[str] | None,
        typer.Option(help="Only these rows, by key or pattern, with commas between or again for more."),
    ] = None,
    network: Annotated[
        str, typer.Option(help="Of MNIST's rows: cnn or cnn-small; default: the scale's.")
    ] = "",
    version: Annotated[
        str, typer.Option(help="Of MNIST's rows: written (the paper's settings) or tuned.")
    ] = "written",
    workspace: Annotated[Path, typer.Option(help="Where runs, evaluations and results go.")] = Path(
        "runs/reproduce"
    ),
    runs: Annotated[
        list[Path] | None,
        typer.Option(help="A folder where finished runs may lie; read only; again for more."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The artefact's folder; default: in the workspace.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List all artefacts and what they cost.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Show the runs, how far each is, and what is left.")] = False,
    finished: Annotated[
        bool, typer.Option(help="Train and attack nothing: write the artefact from what is finished.")
    ] = False,
    attack_dtype: Annotated[
        str, typer.Option(help="float32, or bfloat16: search faster, verify in float32.")
    ] = "float32",
    device: Annotated[str | None, typer.Option(help="cpu, cuda ...; default: a GPU if there is one.")] = None,
    root: Annotated[Path | None, typer.Option(help="Where the data sets are; default: $ATLAS_DATA.")] = None,
) -> None:
    """Reproduce a table or a figure of the paper, next to the paper's own numbers.

    - `atlas reproduce --list` : all of them, with their cost on this machine
    - `atlas reproduce table1-mnist --scale smoke` : does it all work? Seconds
    - `atlas reproduce table1-mnist --rows adv-1,atlas-1 --runs runs` : two rows, from runs that are there
    - `atlas reproduce ablation-cifar10 --seeds 3 --dry-run` : what that would take

    Finished runs and evaluations are found by what they are of, and not repeated. Interrupted or killed, the
    same command goes on where it was.
    """
    place = Workspace(workspace, tuple(runs or ()))
    order = Order(
        choose("artefact", artefact or "", ARTEFACTS),
        choose("scale", scale, {name: name for name in SCALES}),
        place.data,
        network,
        choose("version", version, {"written": "written", "tuned": "tuned"}),
        seeds,
        tuple(key.strip() for part in rows or () for key in part.split(",") if key.strip()),
        attack_dtype,
    )
    lab = Lab(place, root, device, say=_say)
    folder = out or place.results(order.name)
    try:
        if not finished:
            lab.work(order)
    except Interrupted:
        _write(order, lab, folder)
        raise
    _write(order, lab, folder)


def _write(order: Order, lab: Lab, folder: Path) -> None:
    findings = gather(order, lab)
    paths = write(findings, folder)
    console.print(Markdown((folder / f"{order.artefact.name}.md").read_text()))
    for path in paths:
        _say(f"  {path}")
    if findings.missing:
        _say(f"Not complete. To go on: {order.command}")


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
