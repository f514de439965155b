"""A labelled set of images in memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from atlas.config import check_fields
from atlas.errors import DataError, UsageError
from atlas.threat import check_pixels

MOST_NAMED = 5

_COUNTED = torch.empty(0, dtype=torch.int64, device="cpu")
"""Stands for "0, 1, 2, ...": a set is never empty."""


class Batch(NamedTuple):
    """Examples by identity: ids int64 [B], x float32 [B, C, H, W] in [0, 1], y int64 [B]."""

    ids: Tensor
    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Images:
    """Images and labels on the CPU, checked when built and never changed after.

    Args:
        x: uint8, or float32 in [0, 1], [N, C, H, W].
        y: int64 [N] in 0 .. num_classes - 1.
        num_classes: How many there are, also those without an image.
        name: What reports call the data.
        ids: int64 [N], the identity of each example, 0, 1, 2, ... by default. A subset keeps it, because the
            random numbers that an example sees belong to its identity and not to its place in a batch.
        class_names: What reports call the classes; by default their numbers.

    Raises:
        DataError: Shapes, types or ranges are wrong.

    Example:
        >>> images = Images(torch.rand(2, 1, 28, 28), torch.tensor([0, 1]), num_classes=2)
    """

    x: Tensor
    y: Tensor
    num_classes: int
    name: str = "own data"
    ids: Tensor = _COUNTED
    class_names: tuple[str, ...] = ()
    expected: ClassVar[str] = "atlas.data.Images, which atlas.data.as_images makes of a pair (x, y)"

    def __post_init__(self) -> None:
        check_fields(self)
        _check_x(self.x)
        low, high = self.x.aminmax()
        if self.x.dtype == torch.float32 and (low < 0 or high > 1):
            # An antialiased resize gives 1 + 2.4e-7 for white.
            object.__setattr__(self, "x", self.x.clamp(0, 1))
        _check_y(self.y, len(self.x), self.num_classes)
        if self.ids is _COUNTED:
            object.__setattr__(self, "ids", torch.arange(len(self.y), device="cpu"))
        if self.ids.dtype != torch.int64 or self.ids.shape != self.y.shape:
            raise DataError(f"ids must be int64 [{len(self.y)}], got {describe(self.ids)}")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise DataError(f"class_names must be {self.num_classes} names, got {len(self.class_names)}")

    def __repr__(self) -> str:
        return f"Images({self.name!r}: {describe(self.x)}, {self.num_classes} classes)"

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        channels, height, width = self.x.shape[1:]
        return channels, height, width

    @property
    def empty_classes(self) -> str:
        """Which classes have no image, in words; "" where each has one."""
        empty = (self.y.bincount(minlength=self.num_classes) == 0).nonzero().flatten().tolist()
        if not empty:
            return ""
        some = ", ".join(map(str, empty[:MOST_NAMED])) + (", ..." if len(empty) > MOST_NAMED else "")
        span = f"labels go from {int(self.y.min())} to {int(self.y.max())}, and classes count from 0"
        return f"class {some} has no image: {span}"

    def subset(self, index: Tensor | slice | list[int]) -> Images:
        """The examples at these places, in this order, with the ids they had."""
        return replace(self, x=self.x[index], y=self.y[index], ids=self.ids[index])

    def pixels(
        self, index: Tensor | slice | list[int] = slice(None), device: torch.device | str = "cpu"
    ) -> Tensor:
        """The images at these places as float32 in [0, 1]: [B, C, H, W] on `device`."""
        return to_float(self.x[index].to(device))

    def fingerprint(self) -> str:
        """The sha256 of images, labels, ids and number of classes: what a run was trained or tested on."""
        return self._sha256

    @cached_property
    def _sha256(self) -> str:
        digest = hashlib.sha256(f"{self.num_classes} {describe(self.x)}".encode())
        for part in (self.x, self.y, self.ids):
            digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()

    def stats(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation (divided by N, not N - 1) of each channel, in units of [0, 1]."""
        moments = [_moments(channel) for channel in self.x.unbind(1)]
        return tuple(mean for mean, _ in moments), tuple(std for _, std in moments)


def to_float(x: Tensor) -> Tensor:
    """uint8 0 .. 255 or floats in [0, 1] to float32 in [0, 1]. Division, so that every device agrees."""
    return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x.to(torch.float32)


def _moments(channel: Tensor) -> tuple[float, float]:
    """Mean and standard deviation of one channel; exact for uint8, which is counted and not summed."""
    if channel.dtype != torch.uint8:
        std, mean = torch.std_mean(channel, correction=0)
        return float(mean), float(std)
    share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
    level = torch.arange(256, dtype=torch.float64, device="cpu") / 255
    mean = share @ level
    return float(mean), float((share @ (level - mean) ** 2).sqrt())


def check_left_alone(given: Tensor, x: Tensor) -> None:
    """Refuse a model that has changed the images `given` to it, a copy of x."""
    if not torch.equal(given, x):
        raise UsageError(
            "the model must not change its input in place: write x = x - mean instead of x -= mean, or "
            "x = x.clone() before"
        )


def describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _check_x(x: Tensor) -> None:
    got = f"got {describe(x)}"
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise DataError(f"x must be [N, C, H, W], or [N, H, W] for gray images, {got}")
    if len(x) == 0:
        raise DataError(f"x must have at least one image, {got}: the data set is empty")
    if x.dtype not in (torch.uint8, torch.float32):
        raise DataError(f"x must be uint8 in 0 .. 255 or float32 in [0, 1], {got}: convert it first")
    if x.dtype == torch.float32:
        check_pixels(x)


def _check_y(y: Tensor, count: int, num_classes: int) -> None:
    got = f"got {describe(y)}"
    if y.ndim != 1:
        raise DataError(f"y must be one label per image, [{count}], {got} (for one-hot rows: y.argmax(1))")
    if len(y) != count:
        raise DataError(f"y must have one label per image, {got} for {count} images")
    if y.dtype != torch.int64:
        raise DataError(f"y must be int64, {got} (as_images converts any integer type)")
    low, high = y.aminmax()
    if low < 0 or high >= num_classes:
        raise DataError(f"y must be in 0 .. {num_classes - 1}, {got} with labels from {low} to {high}")
