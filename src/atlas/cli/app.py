"""All commands of `atlas` in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from typer import Argument, Exit, Option

from atlas import __version__
from atlas.cli import data, demo, evaluate, init, listing, report, sweep, train
from atlas.errors import UsageError
from atlas_paper.cli import reproduce  # the paper's command; nothing else here imports `atlas_paper`

app = typer.Typer(
    name="atlas",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Adversarial training via local stability: train robust classifiers, and learn how robust they are.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"atlas {__version__}")
        raise Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


COMMANDS: list[Callable[..., None]] = [
    *(demo.demo, init.init, train.train, sweep.sweep, evaluate.evaluate, evaluate.compare, report.report),
    *(reproduce, evaluate.suites, listing.presets, listing.models, listing.methods, listing.attacks),
]
for command in COMMANDS:
    app.command()(command)
app.add_typer(data.app, name="data")


@app.command("bench", hidden=True, add_help_option=False, context_settings={"ignore_unknown_options": True})
def _bench(arguments: Annotated[list[str] | None, Argument()] = None) -> None:
    raise UsageError("`atlas bench` is now `python -m benchmarks`, in the source repository")
