"""The random numbers: against plain integers, and against the distributions that they claim.

Every statistic has a fixed seed and a bound of about five standard deviations, so that a pass is a fact
and a fault of a percent is seen.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from atlas.rng import Rng

MASK = (1 << 64) - 1
GAMMA, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
int64 = st.integers(-(1 << 63), (1 << 63) - 1)


def mixed(z: int) -> int:
    """SplitMix64's finaliser in unbounded integers."""
    z = ((z ^ (z >> 30)) * MIX_1) & MASK
    z = ((z ^ (z >> 27)) * MIX_2) & MASK
    return z ^ (z >> 31)


def folded(key: int, *words: int | str) -> int:
    for word in words:
        if isinstance(word, str):
            word = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        key = mixed((key * MIX_2 + word + GAMMA) & MASK)
    return key


def unsigned(values: Tensor) -> list[int]:
    return [value & MASK for value in values.flatten().tolist()]


def test_splitmix64_reference_values() -> None:
    """The first outputs of the published generator for the seed 1234567."""
    bits = Rng(torch.tensor([1234567])).bits((5,))
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert unsigned(bits) == expected


@given(key=int64, count=st.integers(1, 20))
def test_bits_are_splitmix64(key: int, count: int) -> None:
    expected = [mixed((key + i * GAMMA) & MASK) for i in range(1, count + 1)]
    assert unsigned(Rng(torch.tensor([key])).bits((count,))) == expected


def test_elements_are_those_of_bits() -> None:
    """Any of them, for each lane its own, and the index stays as it was."""
    rng, index = Rng.batch(4, seed=3), torch.tensor([[0, 7], [2, 2], [9, 1], [5, 0]])
    before = index.clone()
    assert torch.equal(rng.elements(index), rng.bits((10,)).gather(1, index))
    assert torch.equal(index, before)
    far = rng.elements(torch.full((4, 1), 1 << 40))
    assert unsigned(far) == [mixed((key + ((1 << 40) + 1) * GAMMA) & MASK) for key in unsigned(rng.key)]


@given(key=int64, words=st.lists(st.one_of(st.integers(-(1 << 70), 1 << 70), st.text()), max_size=4))
def test_fold_in_plain_integers(key: int, words: list[int | str]) -> None:
    assert unsigned(Rng(torch.tensor([key])).fold(*words).key) == [folded(key & MASK, *words)]


@given(seed=st.integers(0, MASK), examples=st.lists(int64, min_size=1, max_size=5))
def test_lanes_fold_the_seed_then_the_example(seed: int, examples: list[int]) -> None:
    key = Rng.lanes(seed, torch.tensor(examples)).key
    assert unsigned(key) == [folded(0, seed, example) for example in examples]


def test_a_batch_without_indices_counts_its_lanes() -> None:
    expected = Rng.lanes(5, torch.tensor([0, 1, 2])).fold(7).key
    assert torch.equal(Rng.batch(3, seed=5, step=7).key, expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_fold_by_a_tensor_is_fold_by_each_number(dtype: torch.dtype) -> None:
    rng = Rng.batch(4, seed=1)
    words = torch.tensor([3, 0, 7, 250], dtype=dtype)
    by_number = [rng[i : i + 1].fold(int(word)).key for i, word in enumerate(words)]
    assert torch.equal(rng.fold(words).key, torch.cat(by_number))


def test_fold_one_word_at_a_time_is_fold_of_all_and_order_matters() -> None:
    rng = Rng.batch(3)
    assert torch.equal(rng.fold("a", 1).key, rng.fold("a").fold(1).key)
    assert not torch.equal(rng.fold("a", "b").key, rng.fold("b", "a").key)


DRAWS: dict[str, Callable[[Rng], Tensor]] = {
    "bits": lambda rng: rng.bits((3, 5)),
    "uniform": lambda rng: rng.uniform((3, 5), -0.3, 0.3),
    "normal": lambda rng: rng.normal((3, 5)),
    "sphere": lambda rng: rng.sphere(10),
}
every_draw = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())


@every_draw
def test_an_example_sees_the_same_in_any_batch(draw: Callable[[Rng], Tensor]) -> None:
    examples = torch.tensor([7, 123456, 0, 59999, 42, 5, 6, 8, 11])
    whole = draw(Rng.lanes(3, examples).fold("attack", 2))
    for i in range(len(examples)):
        alone = draw(Rng.lanes(3, examples[i : i + 1]).fold("attack", 2))
        assert torch.equal(alone[0], whole[i])
    order = torch.tensor([4, 2, 8, 0, 1, 3, 7, 6, 5])
    assert torch.equal(draw(Rng.lanes(3, examples[order]).fold("attack", 2)), whole[order])
    assert torch.equal(draw(Rng.lanes(3, examples).fold("attack", 2)[order]), whole[order])


@every_draw
def test_drawing_changes_nothing(draw: Callable[[Rng], Tensor]) -> None:
    rng, state = Rng.batch(4), torch.get_rng_state()
    key = rng.key.clone()
    assert torch.equal(draw(rng), draw(rng))
    rng.fold("x", torch.arange(4))
    assert torch.equal(rng.key, key)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_caller_keeps_its_indices_and_words() -> None:
    examples, words = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6])
    Rng.lanes(0, examples).fold(words).bits((2,))
    assert examples.tolist() == [1, 2, 3]
    assert words.tolist() == [4, 5, 6]


def test_an_empty_batch_and_an_empty_shape() -> None:
    empty = Rng.batch(0)
    assert len(empty) == 0
    assert empty.uniform((2, 3)).shape == (0, 2, 3)
    assert Rng.batch(4).normal(()).shape == (4,)
    assert Rng.batch(4).bits((0,)).shape == (4, 0)


def test_uniform_is_the_top_24_bits_in_every_dtype() -> None:
    rng = Rng.batch(50, seed=9)
    single, double = rng.uniform((200,)), rng.uniform((200,), dtype=torch.float64)
    top = [bits >> 40 for bits in unsigned(rng.bits((200,)))]
    assert double.flatten().tolist() == [value / 2**24 for value in top]
    assert torch.equal(single.double(), double)
    assert single.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.3, 0.3), (-8 / 255, 8 / 255)])
def test_uniform_stays_in_its_interval_and_agrees_across_dtypes(
    dtype: torch.dtype, low: float, high: float
) -> None:
    rng = Rng.batch(100, seed=2)
    u, exact = rng.uniform((500,), low, high, dtype), rng.uniform((500,), low, high, torch.float64)
    assert u.dtype == dtype
    assert u.isfinite().all()
    slack = (high - low) * torch.finfo(dtype).eps
    assert u.double().min() >= low - slack
    assert u.double().max() <= high + slack
    assert (u.double() - exact).abs().max() <= 2 * slack


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_normal_agrees_across_dtypes_and_is_finite(dtype: torch.dtype) -> None:
    rng = Rng.batch(200, seed=2)
    z, exact = rng.normal((500,), dtype), rng.normal((500,), torch.float64)
    assert z.dtype == dtype
    assert z.isfinite().all()
    assert (z.double() - exact).abs().max() < 40 * torch.finfo(dtype).eps


def chi_square(cells: Tensor, count: int) -> float:
    """Pearson's statistic against equal cells, in standard deviations from its mean."""
    seen = torch.bincount(cells.flatten(), minlength=count).double()
    expected = seen.sum() / count
    statistic = ((seen - expected) ** 2 / expected).sum().item()
    return (statistic - (count - 1)) / math.sqrt(2 * (count - 1))


STREAMS: dict[str, Callable[[], Tensor]] = {
    "elements of a lane": lambda: Rng.batch(1, seed=1).uniform((1 << 18,)).flatten(),
    "lanes": lambda: Rng.lanes(1, torch.arange(1 << 18)).uniform((1,)).flatten(),
    "steps": lambda: (
        Rng(torch.zeros(1 << 18, dtype=torch.int64)).fold(torch.arange(1 << 18)).uniform((1,))[:, 0]
    ),
    "seeds": lambda: torch.cat([Rng.batch(64, seed=seed).uniform((16,)).flatten() for seed in range(256)]),
    "streams by name": lambda: torch.cat(
        [Rng.batch(64).fold(f"stream {i}").uniform((16,)).flatten() for i in range(256)]
    ),
    "lanes far apart": lambda: Rng.lanes(1, torch.arange(1 << 18) << 20).uniform((1,)).flatten(),
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
def test_uniform_along_every_axis_and_neighbours_are_independent(stream: Callable[[], Tensor]) -> None:
    u = stream()
    assert abs(chi_square((u * 256).long(), 256)) < 5
    for lag in (1, 2, 16):
        pairs = (u[:-lag] * 16).long() * 16 + (u[lag:] * 16).long()
        assert abs(chi_square(pairs, 256)) < 5
    triples = (u[:-2] * 8).long() * 64 + (u[1:-1] * 8).long() * 8 + (u[2:] * 8).long()
    assert abs(chi_square(triples, 512)) < 5


NEIGHBOURS: dict[str, Callable[[Rng], Rng]] = {
    "the next step": lambda rng: rng.fold(1),
    "another name": lambda rng: rng.fold("start"),
    "itself folded by its own first word": lambda rng: rng.fold(0).fold(0),
}


@pytest.mark.parametrize("other", NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
def test_a_stream_is_independent_of_its_neighbour(other: Callable[[Rng], Rng]) -> None:
    rng = Rng.lanes(11, torch.arange(4096))
    u, w = rng.fold(0).uniform((64,)), other(rng).uniform((64,))
    assert abs(chi_square((u * 16).long() * 16 + (w * 16).long(), 256)) < 5


def test_adjacent_seeds_are_independent() -> None:
    examples = torch.arange(4096)
    u, w = (Rng.lanes(seed, examples).uniform((64,)) for seed in (0, 1))
    assert abs(chi_square((u * 16).long() * 16 + (w * 16).long(), 256)) < 5


def test_seed_and_example_do_not_trade_places() -> None:
    """(seed 1, example 2) and (seed 2, example 1), or a sum of the two, are different streams."""
    seeds, examples = range(100), torch.arange(100)
    keys = torch.cat([Rng.lanes(seed, examples).key for seed in seeds])
    assert len(keys.unique()) == 100 * 100


def test_every_bit_is_fair() -> None:
    bits = Rng.batch(64, seed=4).bits((4096,)).flatten()
    for place in range(64):
        share = ((bits >> place) & 1).double().mean().item()
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(len(bits))


def test_moments_of_normal() -> None:
    z = Rng.lanes(6, torch.arange(1024)).normal((1024,), torch.float64).flatten()
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)]:
        error = (z**power).mean().item() - moment
        assert abs(error) < 5 * math.sqrt(variance / len(z)), power


def test_normal_has_its_distribution() -> None:
    z = Rng.lanes(6, torch.arange(1024)).normal((1024,), torch.float64).flatten()
    ranks = 0.5 * (1 + torch.erf(z / math.sqrt(2)))
    assert abs(chi_square((ranks * 256).long().clamp(max=255), 256)) < 5


def test_elements_of_normal_are_independent() -> None:
    z = Rng.lanes(6, torch.arange(1 << 16)).normal((8,), torch.float64)
    covariance = z.T @ z / len(z)
    assert (covariance - torch.eye(8)).abs().max() < 5 * math.sqrt(2 / len(z))
    squares = z**2 - 1  # radius and angle must not tie the sizes of neighbours either
    assert ((squares.T @ squares / len(z)) - 2 * torch.eye(8)).abs().max() < 5 * math.sqrt(60 / len(z))


@pytest.mark.parametrize("size", [2, 3, 10, 100])
def test_sphere_is_uniform(size: int) -> None:
    """Length 1, mean 0, covariance I / C; and the first coordinate's fourth moment 3 / (C (C + 2))."""
    count = 1 << 15
    v = Rng.lanes(8, torch.arange(count)).sphere(size, torch.float64)
    torch.testing.assert_close(v.norm(dim=1), torch.ones(count, dtype=torch.float64))
    assert v.mean(0).abs().max() < 5 / math.sqrt(size * count)
    covariance = v.T @ v / count
    assert (covariance - torch.eye(size) / size).abs().max() < 6 * math.sqrt(3) / (size * math.sqrt(count))
    fourth = (v[:, 0] ** 4).mean().item()
    assert fourth == pytest.approx(3 / (size * (size + 2)), rel=5 * 6 / math.sqrt(count))


def test_sphere_of_one_dimension_is_a_fair_sign() -> None:
    v = Rng.lanes(8, torch.arange(1 << 14)).sphere(1)
    assert torch.equal(v.abs(), torch.ones_like(v))
    assert abs(v.mean().item()) < 5 / math.sqrt(len(v))
