"""A user's own data, in whatever shape it comes, as `Images`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from atlas.config import check_arguments
from atlas.data.images import Images, check_whole
from atlas.errors import DataError


@check_arguments()
def as_images(data: object, num_classes: int | None = None) -> Images:
    """Any labelled images as `Images`.

    Takes `Images`; a pair (x, y) of tensors or arrays; a torch `Dataset` of pairs; a `DataLoader`, or
    anything else that yields (x, y) batches. x is [N, C, H, W], or [N, H, W] for gray, as uint8 or as floats
    in [0, 1], not normalised. `num_classes` is the largest label plus one unless given.

    A Dataset or DataLoader is read **once** into memory: augmentation belongs into `fit`, because here each
    image would be augmented once and for all. A loader that visits every example once is read in the order
    of its data set, nothing shuffled and nothing dropped, so that ids mean the same in every run.
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
        raise DataError(f"x: got {list(x.shape)}, which looks like [N, H, W, C]; wanted [N, C, H, W]")
    if x.is_floating_point():
        x = x.to(torch.float32)
    check_whole(y)
    y = y.to(torch.int64)
    if num_classes is None:
        num_classes = int(y.max()) + 1 if y.numel() else 0
    return Images(x, y, num_classes)


def _read_all(data: object) -> tuple[Tensor, Tensor]:
    pairs = [(_tensor("x", x), _tensor("y", y)) for x, y in _pairs(data)]
    if not pairs:
        raise DataError("the data set is empty; wanted at least one image")
    if len({x.shape[1:] for x, _ in pairs}) > 1:
        raise DataError("the images differ in shape; resize them all to one shape first")
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def _pairs(data: object) -> Iterator[tuple[Any, Any]]:
    for batch in _in_order(data):
        if not (isinstance(batch, tuple | list) and len(batch) == 2):
            raise DataError(f"a batch is {type(batch).__name__}; wanted a pair (x, y)")
        yield batch[0], batch[1]


def _in_order(data: object) -> Iterable[Any]:
    if isinstance(data, Dataset):
        return _guarded(DataLoader(data, batch_size=256))
    if isinstance(data, DataLoader):
        once = isinstance(data.sampler, SequentialSampler) or _permutes(data.sampler)
        if once and data.batch_size is not None and not isinstance(data.dataset, IterableDataset):
            return _guarded(
                DataLoader(
                    data.dataset,
                    data.batch_size,
                    collate_fn=data.collate_fn,
                    num_workers=data.num_workers,
                )
            )
        return _guarded(data)
    if isinstance(data, Iterable) and not isinstance(data, str | dict):
        return data
    raise DataError(
        f"got {type(data).__name__}; wanted Images, a pair (x, y) of tensors or arrays, a torch Dataset or a "
        "DataLoader (atlas.data.load reads data sets by name or path)"
    )


def _permutes(sampler: object) -> bool:
    return (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(sampler.data_source)
    )


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
        raise DataError(f"{what}: {error}; wanted a tensor or an array") from error
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what}: got an array of {array.dtype}; wanted numbers")
    native = np.float32 if array.dtype.kind == "f" else array.dtype.newbyteorder("=")
    return torch.from_numpy(np.require(array, native, ["C", "W"]))
