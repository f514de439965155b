"""CIFAR-10 and CIFAR-100, in the python version (pickles) and in the binary version (fixed records)."""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from atlas.errors import DataError

_SHAPE = (3, 32, 32)
_PIXELS = math.prod(_SHAPE)
_MOST_TUPLES = 16  # numpy makes half a dozen for an array
_LARGE_SETS = ("FROZENSET", "EMPTY_SET", "ADDITEMS", "NEXT_BUFFER", "READONLY_BUFFER")


def parse_records(parts: Sequence[bytes], label_bytes: int) -> tuple[Tensor, Tensor]:
    """x uint8 [N, 3, 32, 32] and y int64 [N] from records of labels (the fine one last) and pixels."""
    length = label_bytes + _PIXELS
    for part in parts:
        if not part or len(part) % length:
            raise DataError(f"CIFAR: expected records of {length} bytes, found {len(part)} bytes in all")
    records = torch.cat([_bytes(part).view(-1, length) for part in parts])
    return records[:, label_bytes:].reshape(-1, *_SHAPE), records[:, label_bytes - 1].to(torch.int64)


def parse_pickles(parts: Sequence[bytes], label: bytes) -> tuple[Tensor, Tensor]:
    """x uint8 [N, 3, 32, 32] and y int64 [N] from pickled dictionaries with b"data" and `label`."""
    pairs = [_fields(safe_unpickle(part), label) for part in parts]
    x = torch.cat([_bytes(data).view(-1, *_SHAPE) for data, _ in pairs])
    return x, torch.tensor([value for _, labels in pairs for value in labels], device="cpu")


def _fields(content: object, label: bytes) -> tuple[bytes, list[int]]:
    fields = content if isinstance(content, dict) else {}
    array, labels = fields.get(b"data"), fields.get(label)
    if not isinstance(array, Array) or not isinstance(labels, list):
        raise DataError(f"CIFAR: expected a dictionary with an array 'data' and a list {label.decode()!r}")
    if not all(type(value) is int for value in labels) or array.shape != (len(labels), _PIXELS):
        raise DataError(f"CIFAR: expected {_PIXELS} bytes and one whole label an image, found {array.shape}")
    return array.data, labels


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def safe_unpickle(data: bytes) -> object:
    """The plain containers in a pickle, with every numpy array of bytes as an `Array`.

    Nothing that the pickle names is imported or called: of all globals only the three that numpy writes for
    an array are known, and inert stand-ins take their place.
    """
    try:
        _check_steps(data)
        return _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a broken pickle may raise anything
        raise DataError(f"a pickle that is refused or broken: {error}") from error


def _check_steps(data: bytes) -> None:
    """Refuse steps with which a few bytes could take all memory or all time, before any is made.

    A place in the memo beyond the end of all places makes room for every one before it; and tuples of the
    same two tuples, one within the other, take twice the time to hash with each.
    """
    tuples = puts = 0
    for step, argument, _ in pickletools.genops(data):
        tuples += "TUPLE" in step.name
        puts += "PUT" in step.name or step.name == "MEMOIZE"
        far = "PUT" in step.name and not 0 <= int(argument or 0) <= puts
        if far or tuples > _MOST_TUPLES or step.name in _LARGE_SETS:
            raise pickle.UnpicklingError(f"the step {step.name}, which no list of images needs here")


class Array:
    """What remains of a pickled numpy array: its shape and its bytes. Only uint8, in C order."""

    shape: tuple[int, ...]
    data: bytes

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        if not (isinstance(dtype, _Dtype) and isinstance(data, bytes) and not fortran):
            raise pickle.UnpicklingError("an array that is not of bytes in C order")
        if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) != len(data):
            raise pickle.UnpicklingError(f"an array of shape {shape} with {len(data)} bytes")
        self.shape, self.data = shape, data


class _Dtype:
    def __setstate__(self, state: object) -> None:
        """uint8 has no byte order, fields or alignment: its state says nothing."""


class _Inert:
    """Stands for a global that is an argument only: it can be neither called nor changed."""

    __slots__ = ()

    def __setstate__(self, state: object) -> NoReturn:
        raise pickle.UnpicklingError("a pickle that changes what it imports")


class _Reconstruct(_Inert):
    __slots__ = ()

    def __call__(self, *_: object) -> Array:
        return Array()


class _MakeDtype(_Inert):
    __slots__ = ()

    def __call__(self, code: object, *_: object) -> _Dtype:
        if code != b"u1":
            raise pickle.UnpicklingError(f"an array of {code!r}, not of uint8")
        return _Dtype()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _Inert:
        """The stand-in of one of numpy's three; anything else is refused."""
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return _Reconstruct()
        if (module, name) == ("numpy", "dtype"):
            return _MakeDtype()
        if (module, name) == ("numpy", "ndarray"):
            return _Inert()
        raise pickle.UnpicklingError(
            f"the pickle names {module}.{name}, which is not an array or a container"
        )
