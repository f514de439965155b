"""Presets: one small TOML file for each row of the paper, and CPU-sized ones.

Files whose names start with _ are the parts that others extend.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from atlas.config import ConfigDict, merge, overridden
from atlas.data import Images
from atlas.errors import UsageError, unknown
from atlas.presets.template import commented
from atlas.training.settings import REGISTRIES

NEUTRAL = "standard"
"""The preset for data of any kind."""
DEPTH = 5
"""How far a chain of `extends` may go."""
SMALL_IMAGE = 32
"""Pixels a side up to which a gray image is easy enough for the small CNN."""
BATCHES = 10
"""Per epoch, at least."""
FEW_IMAGES = 1000
MOST_NAMED = 5


def names() -> list[str]:
    """All presets of the package."""
    return sorted(n for n in _files() if not n.startswith("_"))


def load_preset(name_or_file: str) -> tuple[str, ConfigDict]:
    """(name, table) of a preset or of a TOML file, without its `description`."""
    table: ConfigDict = {}
    for _, layer, _ in reversed(_layers(name_or_file)):
        table = merge(table, layer, REGISTRIES)
    table.pop("description", None)
    return Path(name_or_file).stem, table


def description(name_or_file: str) -> str:
    return str(_layers(name_or_file)[0][1].get("description", ""))


def explained(name_or_file: str) -> str:
    """The preset with all that it extends, as one TOML file in which every setting is explained.

    The comments in the files of presets, which say why their settings are what they are, come first.
    """
    head = [description(name_or_file)]
    for name, _, text in _layers(name_or_file):
        note = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
        head += [f"{name}: {note}"] if note and not name.endswith(".toml") else []
    return commented(load_preset(name_or_file)[1], head)


def _layers(name_or_file: str) -> list[tuple[str, ConfigDict, str]]:
    """(name, table, text) of the preset or file, then of what it extends: a preset, or a file next to it."""
    found: list[tuple[str, ConfigDict, str]] = []
    while True:
        text, table = _read(name_or_file)
        base = table.pop("extends", None)
        found.append((name_or_file, table, text))
        if base is None:
            return found
        is_file = isinstance(base, str) and base.endswith(".toml")
        if not isinstance(base, str) or (is_file and Path(base).name != base):
            raise UsageError(
                f"extends = {base!r} in {name_or_file}, expected a preset's name or a .toml file in the same "
                "folder"
            )
        if len(found) > DEPTH:
            raise UsageError(f"extends = {base!r} in {name_or_file} goes in a circle")
        name_or_file = str(Path(name_or_file).parent / base) if is_file else base


def _read(name_or_file: str) -> tuple[str, ConfigDict]:
    """The text and the table of a preset's file, or of a custom one."""
    path: Any = Path(name_or_file)
    if not name_or_file.endswith(".toml"):
        if name_or_file not in _files():
            raise unknown("preset", name_or_file, names())
        path = _files()[name_or_file]
    elif not path.is_file():
        raise UsageError(f"there is no file {name_or_file}; give a preset's name or a .toml file")
    try:
        text = path.read_text("utf-8")
        return text, tomllib.loads(text)
    except (ValueError, RecursionError, OSError) as error:
        # ValueError: not UTF-8, not TOML, or a number of thousands of digits; the other: brackets as deep.
        raise UsageError(f"{name_or_file} is not a TOML file that can be read: {error}") from error


def _files() -> dict[str, Any]:
    folder = resources.files("atlas.presets")
    return {f.name.removesuffix(".toml"): f for f in folder.iterdir() if f.name.endswith(".toml")}


def for_images(images: Images, data: str, model: str | None, eps: str) -> str:
    """A configuration for these images, as a TOML file in which every setting is explained.

    Args:
        images: the training images.
        data: what they are loaded by.
        model: a model's name; None for one that suits their size.
    """
    channels, height, width = images.shape
    small = channels == 1 and max(height, width) <= SMALL_IMAGE
    mean, std = ([round(number, 4) for number in numbers] for numbers in images.stats())
    batch = next(size for size in (64, 32, 16, 8) if size == 8 or len(images) >= BATCHES * size)
    changes = {
        "data": data,
        "model": model or ("cnn-small" if small else "wrn-16-2"),
        "normalize": {"mean": mean, "std": std} if min(std) > 0 else False,
        "threat.eps": eps,
        "training.batch_size": batch,
        "training.validation.size": 0.1 if len(images) >= FEW_IMAGES else 0.2,
    }
    names = ", ".join(images.class_names[:MOST_NAMED]) + (", ..." if images.num_classes > MOST_NAMED else "")
    kind = {1: "gray", 3: "colour"}.get(channels, f"{channels}-channel")
    head = [
        f"{len(images)} training images, {kind}, {width}x{height} pixels, {images.num_classes} classes"
        + (f": {names}." if images.class_names else "."),
        f"The settings are those of the preset {NEUTRAL}, fitted to this data: a start, not an optimum.",
    ]
    table = overridden(load_preset(NEUTRAL)[1], changes.items(), REGISTRIES)
    order = ("data", "model", "normalize", *table)
    return commented({key: table[key] for key in order}, head)
