"""`atlas sweep`."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Annotated

from rich.table import Table
from typer import Argument, Option

from atlas import presets
from atlas.cli.console import Device, Root, Settings, console, say
from atlas.cli.train import setting
from atlas.config import overridden
from atlas.distributed.launch import checked_device
from atlas.errors import UsageError
from atlas.training import RunConfig
from atlas.training.settings import REGISTRIES


def sweep(
    what: Annotated[str, Argument(metavar="PRESET_OR_FILE", help="What is varied: see `atlas presets`.")],
    grid: Annotated[
        list[str] | None, Option(metavar="KEY=A,B,C", help="Try every value with every other. Repeatable.")
    ] = None,
    search: Annotated[
        int | None, Option(min=1, help="Try so many points, in all: chosen by TPE, the poor pruned.")
    ] = None,
    ranges: Annotated[
        list[str] | None,
        Option("--range", metavar="KEY=LOW..HIGH[:log]", help="For --search: a range of numbers."),
    ] = None,
    choices: Annotated[
        list[str] | None, Option("--choice", metavar="KEY=A,B", help="For --search: one of these.")
    ] = None,
    settings: Settings = None,
    score_attack: Annotated[
        str | None,
        Option(
            help="Choose by this attack on the validation images, such as un-t or 'Un-T 3x50'; "
            "default: the preset's validation attack."
        ),
    ] = None,
    no_prune: Annotated[bool, Option("--no-prune", help="Finish trials that fall behind.")] = False,
    seed: Annotated[int, Option(min=0, help="Of the search; a run's own is training.seed.")] = 0,
    out: Annotated[Path | None, Option(help="The sweep's folder; default: runs/sweep-NAME.")] = None,
    url: Annotated[
        str | None,
        Option(
            "--storage",
            envvar="ATLAS_STORAGE",
            show_envvar=True,
            help="postgresql://USER@HOST/DATABASE, the password by PGPASSWORD; default: SQLite in --out.",
        ),
    ] = None,
    root: Root = None,
    device: Device = None,
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
    if importlib.util.find_spec("optuna") is None:
        raise UsageError("sweeps need Optuna: pip install 'atlas-robust[sweep]'")
    from atlas.sweeps import Sweep, work
    from atlas.sweeps.queue import check_url
    from atlas.sweeps.results import names, short
    from atlas.sweeps.study import space_from_options
    from atlas.sweeps.worker import named_attack

    if url:
        check_url(url, hidden=not any(url in word for word in sys.argv))
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
    shown = Table("trial", *names(task.space).values(), "score", "clean", "robust", "state")
    for row in work(task, search, folder, url or None, say, root, device)[:10]:
        values = [short(row.values.get(key)) for key in task.space]
        shares = ["" if share is None else f"{share:.2%}" for share in (row.score, row.clean, row.robust)]
        shown.add_row(str(row.number + 1), *values, *shares, row.state)
    console.print(shown)
    say(f"all trials: {folder / 'table.md'}; the figure: {folder / 'figure.png'}")
    if (folder / "best.toml").exists():
        say(f"train the best again: {shlex.join(['atlas', 'train', str(folder / 'best.toml')])}")
