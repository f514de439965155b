"""The idx format of MNIST: big-endian magic (0, 0, type, rank), one 32-bit length an axis, then the bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from atlas.errors import DataError

_UINT8 = 8


def parse_idx(data: bytes, rank: int) -> Tensor:
    """An idx file of bytes with `rank` axes as a uint8 tensor."""
    head = 4 + 4 * rank
    if len(data) < head or data[:4] != bytes((0, 0, _UINT8, rank)):
        raise DataError(f"idx: expected the magic 0 0 {_UINT8} {rank}, found {' '.join(map(str, data[:4]))}")
    shape = struct.unpack(f">{rank}I", data[4:head])
    if len(data) - head != math.prod(shape):
        raise DataError(
            f"idx: expected {math.prod(shape)} bytes for shape {list(shape)}, found {len(data) - head}"
        )
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)[head:].view(shape)


def parse_pair(parts: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    """x uint8 [N, 1, H, W] and y int64 [N] from the two files of images and labels."""
    images, labels = parts
    return parse_idx(images, 3)[:, None], parse_idx(labels, 1).to(torch.int64)


def format_idx(array: Tensor) -> bytes:
    """The idx file of a uint8 tensor."""
    head = bytes((0, 0, _UINT8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.contiguous().numpy().tobytes()
