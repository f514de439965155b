"""A user's data: an .npz file, a folder of class folders of images, a function, or objects in memory."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler

from atlas.config import check_arguments, import_object
from atlas.data.images import Images, describe
from atlas.data.readers import npz_names, read_npz
from atlas.errors import DataError, user_code_errors

# Formats by name: Pillow would also start other programs (EPS) or decoders that no data set needs.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}

_MOST_PIXELS = 1 << 24
"""Of one image: a few damaged bytes can claim any number, and memory would be taken for all of them."""


def load_npz(path: Path, train: bool) -> Images:
    """Arrays x_train, y_train, x_test, y_test; or x, y, which are training images only.

    The number of classes is the largest label of both halves plus one. Pickled objects are refused.
    """
    found = npz_names(path)
    half = "train" if train else "test"
    x, y = (f"x_{half}", f"y_{half}") if f"x_{half}" in found or not train else ("x", "y")
    if not {x, y} <= {*found}:
        raise DataError(
            f"{path}: expected arrays {x} and {y}, found {', '.join(sorted(found)) or 'none'}; "
            "save the set with np.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)"
        )
    labels = {"y", "y_train", "y_test"}.intersection(found)
    arrays = read_npz(path, {x, *labels})
    whole = [arrays[name] for name in labels if arrays[name].dtype.kind in "iu" and arrays[name].size]
    largest = max((int(array.max()) for array in whole), default=0)
    return replace(as_images((arrays[x], arrays[y]), largest + 1), name=path.name)


def has_test_set(path: Path) -> bool:
    """Whether the .npz file or folder has test images."""
    if path.is_dir():
        return (path / "train").is_dir() and (path / "test").is_dir()
    return {"x_test", "y_test"} <= set(npz_names(path))


def load_folder(path: Path, train: bool) -> Images:
    """path/train/CLASS/*.png and path/test/CLASS/*.png; or path/CLASS/*.png, which are training images only.

    Labels count the class folders of the training images in the order of their names. Classes take turns, so
    that the first n images are of all of them. All images must have one size; they are gray if all of them
    are, and colour otherwise.
    """
    split = (path / "train").is_dir()
    if not train and not has_test_set(path):
        raise DataError(
            f"{path}: has no test set; move images to {path}/train/CLASS and {path}/test/CLASS, or train "
            f"with data = {json.dumps(f'{path}:test=0.2')}, which uses a fifth of them as test images"
        )
    classes = _folders(path / "train" if split else path)
    folder = path if not split else path / ("train" if train else "test")
    extra = ", ".join(name for name in _folders(folder) if name not in classes)
    if extra:
        raise DataError(f"{folder}: found classes that {path}/train does not have: {extra}")
    turns = sorted(
        (k, label, file) for label, name in enumerate(classes) for k, file in enumerate(_files(folder / name))
    )
    if not turns:
        raise DataError(
            f"{folder}: expected images in class folders, found none ({', '.join(sorted(_SUFFIXES))})"
        )
    x, y = _stack([file for *_, file in turns]), [label for _, label, _ in turns]
    return replace(as_images((x, y), len(classes)), name=path.name, class_names=tuple(classes))


def load_function(name: str, train: bool) -> Images:
    """What the function ``module.path:name`` returns when called with `train`, as `as_images` takes it."""
    function = import_object("data set", name)
    if not callable(function):
        raise DataError(f"data {name!r} must be a function of train, got a {type(function).__name__}")
    with user_code_errors(f"data {name!r}", DataError):
        data = function(train=train)
    return replace(as_images(data), name=name.rpartition(":")[2])


def _folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(entry for entry in folder.iterdir() if entry.suffix.lower() in _SUFFIXES)


def _stack(files: list[Path]) -> NDArray[np.uint8]:
    """All images as [N, H, W] if every one is gray, else [N, 3, H, W]."""
    pixels: list[NDArray[np.uint8]] = []
    for file in files:
        pixels.append(_decode(file))
        (height, width), (rows, columns) = pixels[-1].shape[-2:], pixels[0].shape[-2:]
        if (height, width) != (rows, columns):
            raise DataError(
                f"{file}: {width}x{height} pixels where {files[0].name} has {columns}x{rows}; resize all "
                "images to one size"
            )
    if len({array.ndim for array in pixels}) > 1:
        pixels = [array if array.ndim == 3 else np.repeat(array[None], 3, axis=0) for array in pixels]
    return np.stack(pixels)


def _decode(file: Path) -> NDArray[np.uint8]:
    """One image, gray [H, W] or colour [3, H, W], turned upright as its EXIF orientation says.

    What could be read in more than one way is refused: more than one frame, and transparent pixels. An image
    with too many pixels is refused undecoded.
    """
    if not file.is_file():  # a pipe would be waited for
        raise DataError(f"{file}: expected a regular file; remove it from the folder")
    try:
        with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
            image = Image.open(file, formats=_FORMATS)
        with image:
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError(f"must have at most {_MOST_PIXELS} pixels, got {image.width}x{image.height}")
            if image.mode in ("I", "F") or image.mode.startswith("I;"):
                raise ValueError(f"must have 8 bits per channel, got mode {image.mode}: convert it first")
            if (frames := getattr(image, "n_frames", 1)) > 1:
                raise ValueError(f"must be a single image, got {frames} frames: save one of them")
            ImageOps.exif_transpose(image, in_place=True)
            if image.has_transparency_data and np.asarray(image.convert("RGBA"))[..., 3].min() < 255:
                raise ValueError("has transparent pixels; save it on an opaque background")
            if image.mode in ("1", "L", "LA"):
                return np.asarray(image.convert("L"))
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except Exception as error:  # a broken picture may raise anything
        raise DataError(f"{file}: cannot be used: {error}; repair or remove it") from error


@check_arguments()
def as_images(data: object, num_classes: int | None = None) -> Images:
    """Any labelled images as `Images`.

    A Dataset or DataLoader is read **once** into memory, so leave augmentation to `fit`. A loader that visits
    every example once is read in the order of its data set, nothing shuffled and nothing dropped, so that ids
    mean the same in every run.

    Args:
        data: `Images`; a pair (x, y) of tensors or arrays; a torch `Dataset` of pairs; a `DataLoader`, or
            anything else that yields (x, y) batches. x is [N, C, H, W], or [N, H, W] for gray, as uint8 or as
            floats in [0, 1], not normalised.
        num_classes: By default the largest label plus one.

    Raises:
        DataError: The images or labels cannot be used.

    Example:
        >>> images = as_images((torch.rand(8, 1, 28, 28), torch.arange(8)))
    """
    if isinstance(data, Images):
        if num_classes in (None, data.num_classes):
            return data
        return Images(data.x, data.y, num_classes, data.name, data.ids)
    x, y = data if isinstance(data, tuple) and len(data) == 2 else _read_all(data)
    x, y = _tensor("x", x), _tensor("y", y)
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim == 4 and x.shape[1] > 4 and x.shape[3] in (1, 3, 4):
        raise DataError(f"x must be [N, C, H, W], got {list(x.shape)}, which looks like [N, H, W, C]")
    if x.is_floating_point():
        x = x.to(torch.float32)
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise DataError(f"y must be integer labels 0, 1, 2, ..., got {describe(y)}")
    y = y.to(torch.int64)
    if num_classes is None:
        num_classes = int(y.max()) + 1 if y.numel() else 0
    return Images(x, y, num_classes)


def _read_all(data: object) -> tuple[Tensor, Tensor]:
    pairs = []
    for batch in _in_order(data):
        if not (isinstance(batch, tuple | list) and len(batch) == 2):
            raise DataError(f"a batch must be a pair (x, y), got a {type(batch).__name__}")
        pairs.append((_tensor("x", batch[0]), _tensor("y", batch[1])))
    if not pairs:
        raise DataError("the data set is empty: it must have at least one image")
    if len({x.shape[1:] for x, _ in pairs}) > 1:
        raise DataError("the images differ in shape; resize them all to one shape first")
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def _in_order(data: object) -> Iterable[Any]:
    """The batches of any data; a loader that visits all of its data set is read in the order of that."""
    if isinstance(data, Dataset):
        data = DataLoader(data, batch_size=256)
    if not isinstance(data, DataLoader):
        if isinstance(data, Iterable) and not isinstance(data, str | dict):
            return data
        raise DataError(
            "data must be Images, a pair (x, y) of tensors or arrays, a torch Dataset or a DataLoader, got a "
            f"{type(data).__name__} (atlas.data.load reads data sets by name or path)"
        )
    sampler = data.sampler
    if isinstance(sampler, RandomSampler):
        whole = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    else:
        whole = isinstance(sampler, SequentialSampler)
    if whole and data.batch_size is not None:
        workers = data.num_workers
        data = DataLoader(data.dataset, data.batch_size, collate_fn=data.collate_fn, num_workers=workers)
    return _guarded(data)


def _guarded(loader: DataLoader[Any]) -> Iterator[Any]:
    try:
        yield from loader
    except (TypeError, RuntimeError) as error:
        raise DataError(
            f"the data set's items do not stack to tensors ({error}); each item must be a pair of an image "
            "tensor, all of one shape, and an integer label"
        ) from error


def _tensor(what: str, value: object) -> Tensor:
    """A CPU tensor that shares the memory of a tensor or array where it can."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"{what} must be a tensor or an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} must hold numbers, got an array of {array.dtype}")
    native = np.float32 if array.dtype.kind == "f" else array.dtype.newbyteorder("=")
    return torch.from_numpy(np.require(array, native, ["C", "W"]))
