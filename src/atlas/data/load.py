"""Data sets by name or by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from atlas.data import idx
from atlas.data.images import Images
from atlas.data.sources import EMBEDDED, SOURCES
from atlas.data.store import data_root, find
from atlas.errors import choose

Parser = Callable[[Sequence[bytes]], tuple[Tensor, Tensor]]

PARSERS: Mapping[str, Parser] = {"idx": idx.parse_pair}


def load(name_or_path: str | Path, train: bool = True, root: Path | None = None) -> Images:
    """The training or test half of a data set.

    A name (`atlas data list`) is looked up below `root`, else $ATLAS_DATA, else ~/.cache/atlas; mnist-mini is
    part of the package and needs none of them.
    """
    name = str(name_or_path)
    source = choose("data set", name, SOURCES)
    place = find(name, source, train, Path(__file__).parent if name == EMBEDDED else data_root(root))
    x, y = PARSERS[place.form.parser](place.read())
    return Images(x, y, source.num_classes, name)
