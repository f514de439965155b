"""Random numbers as a pure function of (seed, stream, example, step).

There is no hidden state: batch size, order, worker count and resuming never change what an example
sees. Each lane (example) of a batch has a 64-bit key; folding a word into a key gives an independent
stream; element i of a stream is the SplitMix64 finaliser of ``key + (i + 1) * gamma`` (Steele, Lea and
Flood 2014), computed with integer tensor operations, so every device agrees to the bit.

    rng = Rng.lanes(seed=0, examples=index).fold("attack", epoch)
    start = rng.fold("start").uniform(x.shape[1:], -eps, eps)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

import torch
from torch import Tensor

from atlas.config import integer
from atlas.errors import UsageError

Word = int | str | Tensor


def _signed(word: int) -> int:
    """The int64 with the low 64 bits of `word`."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _xor_shift(z: Tensor, bits: int) -> Tensor:
    # torch shifts signed integers arithmetically: the mask makes the shift logical.
    return z.bitwise_xor_((z >> bits).bitwise_and_((1 << (64 - bits)) - 1))


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, in place."""
    _xor_shift(z, 30).mul_(_MIX_1)
    _xor_shift(z, 27).mul_(_MIX_2)
    return _xor_shift(z, 31)


def _word(value: Word) -> int | Tensor:
    if isinstance(value, str):
        digest = hashlib.blake2b(value.encode(), digest_size=8).digest()
        return _signed(int.from_bytes(digest, "little"))
    if isinstance(value, Tensor):
        return value.to(torch.int64)
    try:
        return _signed(index(value))
    except TypeError:
        expected = "an integer, a string or an integer tensor"
        raise UsageError(f"a seed, step or stream name must be {expected}, got {value!r}") from None


@dataclass(frozen=True)
class Rng:
    """One stream of random numbers per example. It has no state: the same streams give the same numbers.

    Args:
        key: the streams, int64 [B]; made by `Rng.batch` or `Rng.lanes`.

    Raises:
        UsageError: for a key of another type or shape.

    Example:
        >>> import atlas
        >>> rng = atlas.Rng.batch(2, seed=0)
        >>> rng.fold("start").uniform((3,)).equal(rng.fold("start").uniform((3,)))
        True
    """

    key: Tensor

    def __post_init__(self) -> None:
        key: object = self.key
        if not isinstance(key, Tensor) or key.dtype != torch.int64 or key.dim() != 1:
            raise UsageError(f"Rng.key must be an int64 tensor [B], got {key!r}: use Rng.batch(len(x))")

    @classmethod
    def lanes(cls, seed: int, examples: Tensor) -> Rng:
        """The root streams of the examples with these indices ([B], any integer type)."""
        given: object = examples
        if not isinstance(given, Tensor) or given.is_floating_point():
            raise UsageError(f"examples must be an integer tensor [B], got {given!r}")
        return cls(torch.zeros_like(examples, dtype=torch.int64)).fold(seed, examples)

    @classmethod
    def batch(cls, size: int, seed: int = 0, step: int = 0, device: torch.device | str = "cpu") -> Rng:
        """Streams for a batch whose examples have no indices, as in a custom training loop."""
        return cls.lanes(seed, torch.arange(integer(size, "size", least=0), device=device)).fold(step)

    def fold(self, *words: Word) -> Rng:
        """Independent streams, named by integers, strings or one integer a lane."""
        key = self.key.clone()
        for word in words:
            key = _mix(key.mul_(_MIX_2).add_(_word(word)).add_(_GAMMA))
        return Rng(key)

    def __len__(self) -> int:
        return len(self.key)

    def __getitem__(self, lanes: Tensor | slice) -> Rng:
        return Rng(self.key[lanes])

    def to(self, device: torch.device | str) -> Rng:
        return Rng(self.key.to(device))

    def bits(self, shape: Sequence[int]) -> Tensor:
        """64 random bits an element: int64 [B, *shape]."""
        count = math.prod(shape)
        counter = torch.arange(1, count + 1, device=self.key.device).mul_(_GAMMA)
        return _mix(self.key[:, None] + counter).view(len(self), *shape)

    def elements(self, index: Tensor) -> Tensor:
        """64 random bits each: the elements of the streams with these numbers, int64 [B, n].

        Element i is what `bits` gives at i, whoever asks for how many: for draws that come one at a time.
        """
        return _mix((index + 1).mul_(_GAMMA).add_(self.key[:, None]))

    def uniform(
        self,
        shape: Sequence[int],
        low: float = 0.0,
        high: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Uniform on [low, high) with 24 bits, the same in every dtype up to its rounding: [B, *shape]."""
        top = (self.bits(shape) >> 40).bitwise_and_((1 << 24) - 1)
        wide = torch.promote_types(dtype, torch.float32)  # 24 bits overflow float16
        return top.to(wide).mul_((high - low) * 2.0**-24).add_(low).to(dtype)

    def normal(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal by Box and Muller's transform: [B, *shape]."""
        # In bfloat16 a uniform number may round to 1, whose normal is infinite.
        wide = torch.promote_types(dtype, torch.float32)
        radius = (1 - self.fold("radius").uniform(shape, dtype=wide)).log_().mul_(-2).sqrt_()
        return self.fold("angle").uniform(shape, 0.0, 2 * math.pi, wide).cos_().mul_(radius).to(dtype)

    def sphere(self, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Uniform on the unit sphere of R^size: [B, size]."""
        return torch.nn.functional.normalize(self.normal((size,), dtype), dim=1)


def streams(rng: Rng | None, x: Tensor) -> Rng:
    """`rng` on the device of x; without one, streams whose seed is drawn from torch's global generator.

    So `torch.manual_seed` decides what a call without `rng` draws, and two such calls differ.
    """
    if rng is None:
        seed = int(torch.randint(2**63 - 1, (), device="cpu"))
        return Rng.batch(len(x), seed, device=x.device)
    if not isinstance(rng, Rng):
        raise UsageError(
            f"rng must be an atlas.Rng, such as Rng.batch(len(x), seed=0, step=i), got {type(rng).__name__}: "
            "omit it to let torch.manual_seed decide"
        )
    if len(rng) != len(x):
        raise UsageError(
            f"rng must have one stream per image, got {len(rng)} for {len(x)} images: use Rng.batch(len(x))"
        )
    return rng.to(x.device)
