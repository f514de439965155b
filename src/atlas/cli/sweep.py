"""`atlas sweep`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from atlas import presets
from atlas.cli.console import Root, console, say
from atlas.cli.train import setting
from atlas.config import overridden
from atlas.distributed.launch import checked_device
from atlas.errors import UsageError
from atlas.training import RunConfig
from atlas.training.settings import REGISTRIES

if TYPE_CHECKING:
    from atlas.sweeps.results import TrialResult


def sweep(
    ctx: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="PRESET_OR_FILE", help="What is varied: see `atlas presets`.")
    ],
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,C", help="Try every value with every other. Again for more."),
    ] = None,
    search: Annotated[
        int | None, typer.Option(min=1, help="Try so many points, in all: chosen by TPE, the poor pruned.")
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="KEY=LOW..HIGH[:log]", help="For --search: a range of numbers."),
    ] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option("--choice", metavar="KEY=A,B", help="For --search: one of these."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of all trials, as `atlas train`."),
    ] = None,
    score_attack: Annotated[
        str | None,
        typer.Option(
            help="Choose by this attack on the validation images, such as un-t or 'Un-T 3x50'; "
            "default: the preset's validation attack."
        ),
    ] = None,
    no_prune: Annotated[bool, typer.Option("--no-prune", help="Let trials that fall behind go on.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the search; a run's own is training.seed.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The sweep's folder; default: runs/sweep-NAME.")] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--storage",
            envvar="ATLAS_STORAGE",
            show_envvar=True,
            help="postgresql://USER@HOST/DATABASE, the password by PGPASSWORD; default: SQLite in --out.",
        ),
    ] = None,
    root: Root = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda ...; default: a GPU if there is one.")] = None,
) -> None:
    """Try many settings of a preset, and keep the best.

    - `atlas sweep mnist-quick-atlas-1 --grid method.alpha=1e-6,1e-5,1e-4 --grid method.beta=0.1,0.3,1`
    - `atlas sweep mnist-quick-atlas-1 --search 40` : the method's weights and the learning rate
    - `atlas sweep mnist-quick-adv-1 --search 20 --choice training.optimizer.kind=sgd,adam
      --range training.optimizer.lr=1e-4..0.3:log --range training.schedule.ramp_epochs=1..8`

    Start the same command again, on this or another machine, and it joins in. What was interrupted or killed
    is resumed. Then: `atlas train FOLDER/best.toml`.
    """
    if bool(grid) == (search is not None):
        raise UsageError("got neither or both of --grid and --search; give one of them")
    if grid and (ranges or choices):
        raise UsageError("--range and --choice are for --search; a grid takes --grid KEY=A,B,C")
    name, table = presets.load_preset(what)
    base = overridden(table, map(setting, settings or []), REGISTRIES)
    config = RunConfig.of(base)
    checked_device(device)
    _need_optuna()
    from atlas.sweeps import Sweep, work
    from atlas.sweeps.queue import check_url
    from atlas.sweeps.study import space_from_options
    from atlas.sweeps.worker import named_attack

    where = check_url(url, hidden=_is_from_environment(ctx, "url")) if url else None
    task = Sweep(
        what,
        base,
        space_from_options(config, grid or (), ranges or (), choices or ()),
        grid=bool(grid),
        seed=seed,
        prune=not (no_prune or grid),
        score=None if score_attack is None else named_attack(score_attack, config.data),
    )
    folder = out or Path("runs") / f"sweep-{name}"
    found = work(task, search, folder, where, say, root, device)
    _print(found, list(task.space), folder)


def _is_from_environment(ctx: typer.Context, parameter: str) -> bool:
    source = ctx.get_parameter_source(parameter)
    return source is not None and source.name == "ENVIRONMENT"


def _need_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise UsageError("sweeps need Optuna: pip install 'atlas-robust[sweep]'") from error


def _print(found: list[TrialResult], keys: list[str], folder: Path) -> None:
    from atlas.sweeps.results import names, short

    table = Table("trial", *names(keys).values(), "score", "clean", "robust", "state")
    for row in found[:10]:
        shares = [row.score, row.clean, row.robust]
        table.add_row(
            str(row.number + 1),
            *(short(row.values.get(key)) for key in keys),
            *("" if share is None else f"{share:.2%}" for share in shares),
            row.state,
        )
    console.print(table)
    say(f"all trials: {folder / 'table.md'}; the figure: {folder / 'figure.png'}")
    if (folder / "best.toml").exists():
        say(f"train the best again: {shlex.join(['atlas', 'train', str(folder / 'best.toml')])}")
