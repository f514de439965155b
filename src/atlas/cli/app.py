"""All commands of `atlas` in one place."""

from __future__ import annotations

from typing import Annotated

import typer

from atlas import __version__
from atlas.cli import data, demo, evaluate, init, listing, report, sweep, train
from atlas.errors import UsageError

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
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _add_reproduce() -> None:
    """The paper's command. Nothing else in the library imports `atlas_paper`."""
    from atlas_paper.cli import reproduce

    app.command("reproduce")(reproduce)


app.command("demo")(demo.demo)
app.command("init")(init.init)
app.command("train")(train.train)
app.command("sweep")(sweep.sweep)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(evaluate.compare)
app.command("report")(report.report)
_add_reproduce()
app.command("suites")(evaluate.suites)
app.command("presets")(listing.presets)
app.command("models")(listing.models)
app.command("methods")(listing.methods)
app.command("attacks")(listing.attacks)
app.add_typer(data.app, name="data")


@app.command("bench", hidden=True, add_help_option=False, context_settings={"ignore_unknown_options": True})
def _bench(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    raise UsageError("`atlas bench` is now `python -m benchmarks`, in the source repository (docs/speed.md)")
