"""`atlas data`: which data sets there are, and getting and testing them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import DownloadColumn, Progress
from rich.table import Table
from typer import Argument

from atlas.cli.console import Root, console, say
from atlas.data.fetch import fetch as fetch_set
from atlas.data.store import SOURCES, File, data_root, home, present
from atlas.data.store import verify as verify_set
from atlas.errors import DataError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="List, download and test the data sets that have a name. Your own need none of this: "
    "`atlas train ... --set data=PATH` takes an .npz file or a folder of class folders.",
)

Name = Annotated[str, Argument(help="A data set by name: see `atlas data list`.")]


@app.command("list")
def list_sets(root: Root = None) -> None:
    """Show every data set that has a name, and whether it is here.

    Example: `atlas data list --root ~/torchvision-data`
    """
    table = Table("name", "what", "classes", "licence", "here")
    for name, source in SOURCES.items():
        folder = data_root(name, root)
        here = present(name, True, folder) and present(name, False, folder)
        table.add_row(name, source.about, str(source.num_classes), source.licence, "yes" if here else "no")
    console.print(table)
    say(f"Looked in {home(root)}. Get one with `atlas data fetch NAME`.")


@app.command()
def fetch(name: Name, root: Root = None) -> None:
    """Download a data set over https, test it, and only then give it its name.

    A download that broke off resumes, a mirror that fails or lies is left for the next one, and
    files that are there already are tested and left alone.

    Example: `atlas data fetch cifar10`
    """
    with Progress(*Progress.get_default_columns(), DownloadColumn(), console=console) as progress:
        tasks = {}

        def report(file: File, done: int) -> None:
            if file not in tasks:
                tasks[file] = progress.add_task(file.name, total=file.size)
            progress.update(tasks[file], completed=done)

        paths = fetch_set(name, root, report)
    say("\n  ".join([f"{name} is complete and as published:", *map(str, paths)]))


@app.command()
def verify(name: Name, root: Root = None) -> None:
    """Test every file of a data set that is here against its published length and digest. Changes nothing.

    Example: `atlas data verify mnist --root ~/torchvision-data`
    """
    table, bad = Table("file", "bytes", "test", "result"), []
    for path, file, problem in verify_set(name, data_root(name, root)):
        table.add_row(path.name, f"{file.size:,}", file.digest.partition(":")[0], problem or "ok")
        bad += [f"{path}: {problem}"] if problem else []
    console.print(table)
    if bad:
        raise DataError(
            f"{'; '.join(bad)}; nothing was changed: move it away and run `atlas data fetch {name}`"
        )
    say(f"{name} in {path.parent} is complete and as published.")
