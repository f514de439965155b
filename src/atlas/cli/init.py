"""`atlas init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from atlas import data as data_sets
from atlas import presets
from atlas.cli.console import Root, say
from atlas.config import number
from atlas.data.load import TEST, lacks_test_set
from atlas.errors import UsageError
from atlas.files import write_atomic
from atlas.threat import Linf


def init(
    data: Annotated[str, Argument(metavar="DATA", help="An .npz file, a folder of class folders or a name.")],
    out: Annotated[Path | None, Option(help="The file to write; default: DATA's name.toml.")] = None,
    model: Annotated[
        str | None, Option(help="A name (`atlas models`) or module:factory; default: by image size.")
    ] = None,
    eps: Annotated[str, Option(help="The radius in pixel units of [0, 1].")] = "8/255",
    root: Root = None,
) -> None:
    """Write a commented configuration for your data, ready for `atlas train`.

    It has the data's image size, channels, classes and normalisation, and the settings of the preset
    `standard`, whose attacks follow eps.

    - `atlas init photos` : a folder of class folders; writes photos.toml
    - `atlas init photos.npz --model my_package.nets:make --eps 4/255 --out mine.toml`
    """
    path = out or Path(f"{Path(data.partition(':')[0]).stem}.toml")
    if path.suffix != ".toml":
        raise UsageError(f"--out must be a .toml file, got {path}")
    if path.exists():
        raise UsageError(f"{path} exists: choose another file with --out")
    if lacks_test_set(data):
        say(f"{data} has no test set: a fifth of its images is set apart (data = ...{TEST}0.2)")
        data += f"{TEST}0.2"
    images = data_sets.load(data, train=True, root=root)
    Linf(number(eps, "--eps"))
    text = presets.for_images(images, data, model, eps)
    write_atomic(path, text.encode())
    say(" ".join(line.removeprefix("# ") for line in text.partition("\n\n")[0].splitlines()))
    say(f"Wrote {path}. Next: atlas train {path}")
