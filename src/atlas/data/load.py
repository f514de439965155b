"""Data sets by name or by path."""

from __future__ import annotations

import re
from pathlib import Path

from atlas.config import check_arguments, number
from atlas.data.batches import split_test
from atlas.data.images import Images
from atlas.data.readers import PARSERS
from atlas.data.store import SOURCES, at_home, data_root, find
from atlas.data.user_data import has_test_set, load_folder, load_function, load_npz
from atlas.errors import DataError, unknown

FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
TEST = ":test="
"""After a path: the share of its images to use as test images."""


@check_arguments()
def load(name_or_path: str | Path, train: bool = True, root: Path | str | None = None) -> Images:
    """The training or the test half of a data set.

    Args:
        name_or_path: A name (`atlas data list`), or NAME:N for its first N training images and all of its
            test images; the path of an .npz file or of a folder of class folders (./mnist where a named set
            is called like it), or PATH:test=0.2 to use a fifth of each class as test images where the path
            has none; or ``module.path:function``, which is called with `train`.
        train: Which half.
        root: Where named sets are, by default $ATLAS_DATA, else ~/.cache/atlas; mnist-mini is in the package.

    Raises:
        DataError: A file is missing, altered or not what it should be.
        UsageError: There is no data set of this name.

    Example:
        >>> images = load("mnist-mini:1000")
    """
    if TEST in str(name_or_path):
        return _divided(str(name_or_path), train, root)
    name, colon, count = str(name_or_path).partition(":")
    if isinstance(name_or_path, str) and name in SOURCES:
        if colon and not re.fullmatch("[1-9][0-9]{0,9}", count):
            raise DataError(f"{name_or_path!r} must be NAME:N, such as {name}:1000, for N training images")
        source, location = SOURCES[name], find(name, train, data_root(name, root))
        x, y = PARSERS[location.form.parser](location.read())
        images = Images(x, y, source.num_classes, name, class_names=source.class_names)
        if colon and train and int(count) > len(images):
            raise DataError(f"{name_or_path}: there are {len(images)} training images")
        return images.subset(slice(int(count))) if colon and train else images
    path = at_home(name_or_path)
    if path.suffix == ".npz" and path.is_file():
        return load_npz(path, train)
    if path.is_dir():
        return load_folder(path, train)
    if isinstance(name_or_path, str) and FUNCTION.fullmatch(name_or_path):
        return load_function(name_or_path, train)
    if isinstance(name_or_path, Path) or path.exists() or path.suffix == ".npz" or len(path.parts) > 1:
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        found = "another kind of file" if path.exists() else f"nothing{where}"
        raise DataError(
            f"{path}: expected an .npz file or a folder of class folders of images, found {found}"
        )
    raise unknown("data set (nor is there a folder called)", str(name_or_path), SOURCES)


def lacks_test_set(name_or_path: str | Path) -> bool:
    """Whether this name or path has training data but no test data."""
    text = str(name_or_path)
    path = at_home(name_or_path)
    if TEST in text or text.partition(":")[0] in SOURCES or not path.exists():
        return False
    return not has_test_set(path)


def _divided(text: str, train: bool, root: Path | str | None) -> Images:
    name, _, words = text.rpartition(TEST)
    share = number(words, f"the share of test images in {text!r}")
    if not 0 < share < 1:
        raise DataError(f"the share of test images in {text!r} must be between 0 and 1, got {words}")
    images = load(name, train=True, root=root)
    if not lacks_test_set(name):
        raise DataError(f"{name} has a test set: omit {TEST}{words}")
    return split_test(images, share)[0 if train else 1]
