"""Splits and epochs: who is in, in which order, and that it depends on seed, epoch and identity alone."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atlas.data import AUGMENTS, Batch, Images, PadCropFlip, batches, num_batches, split
from atlas.errors import DataError, UsageError


def numbered(n: int) -> Images:
    """n images that carry their own number in their pixels."""
    number = torch.arange(n)
    x = torch.stack([number % 256, number // 256], 1).to(torch.uint8)[:, :, None, None].expand(n, 2, 6, 6)
    return Images(x.contiguous(), number % 7, 7)


def joined(epoch: list[Batch]) -> Batch:
    return Batch(*(torch.cat(parts) for parts in zip(*epoch, strict=True)))


def test_an_epoch_holds_every_example_once_with_its_own_image_and_label() -> None:
    images = numbered(1000)
    ids, x, y = joined(list(batches(images, 64, seed=3, epoch=2)))
    assert sorted(ids.tolist()) == list(range(1000))
    assert x.dtype == torch.float32
    assert torch.equal(x, images.x[ids].float() / 255)
    assert torch.equal(y, ids % 7)


def test_the_order_is_a_function_of_seed_and_epoch_alone() -> None:
    images = numbered(500)

    def order(seed: int, epoch: int, batch_size: int) -> list[int]:
        return joined(list(batches(images, batch_size, seed=seed, epoch=epoch))).ids.tolist()

    assert order(0, 0, 64) == order(0, 0, 64) == order(0, 0, 7) == order(0, 0, 500)
    orders = [tuple(order(seed, epoch, 64)) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9
    torch.manual_seed(1)
    torch.rand(3)
    assert order(2, 2, 64) == list(orders[-1])


def test_the_order_is_uniform() -> None:
    """How often each of 6 examples comes first, over 3000 epochs: chi-squared with 5 degrees of freedom."""
    images = numbered(6)
    first = [int(next(batches(images, 2, seed=0, epoch=epoch)).ids[0]) for epoch in range(3000)]
    counts = torch.tensor(first).bincount(minlength=6).double()
    assert ((counts - 500) ** 2 / 500).sum() < 20.5  # p = 0.001


def test_two_examples_keep_their_order_whoever_else_is_there() -> None:
    images = numbered(100)
    whole = joined(list(batches(images, 10, seed=0, epoch=4))).ids.tolist()
    part = joined(list(batches(images.subset(slice(0, 100, 3)), 10, seed=0, epoch=4))).ids.tolist()
    assert part == [i for i in whole if i % 3 == 0]


@given(n=st.integers(1, 60), batch_size=st.integers(1, 20))
def test_sizes_agree_with_num_batches_and_nobody_is_left_alone(n: int, batch_size: int) -> None:
    sizes = [len(batch.y) for batch in batches(numbered(n), batch_size, seed=0, epoch=0)]
    assert len(sizes) == num_batches(n, batch_size)
    assert sum(sizes) == n
    assert all(size == batch_size for size in sizes[:-1])
    assert sizes[-1] <= batch_size + 1
    assert sizes[-1] > 1 or n == 1 or batch_size == 1


@pytest.mark.parametrize(
    ("n", "batch_size", "sizes"),
    [(257, 128, [128, 129]), (258, 128, [128, 128, 2]), (129, 128, [129]), (1, 128, [1]), (3, 1, [1, 1, 1])],
)
def test_a_single_image_left_over_joins_the_batch_before(n: int, batch_size: int, sizes: list[int]) -> None:
    assert [len(batch.y) for batch in batches(numbered(n), batch_size, seed=0, epoch=0)] == sizes


@pytest.mark.parametrize("first", range(8))
def test_an_epoch_continues_from_any_batch(first: int) -> None:
    images = numbered(113)
    arguments = {"seed": 1, "epoch": 5, "augment": PadCropFlip(pad=2)}
    whole = list(batches(images, 16, **arguments))
    rest = list(batches(images, 16, first=first, **arguments))
    assert len(whole) == 7
    assert len(rest) == 7 - first
    for one, other in zip(whole[first:], rest, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_skipped_batches_are_not_computed() -> None:
    calls = []

    def augment(x: torch.Tensor, rng: object) -> torch.Tensor:
        calls.append(len(x))
        return x

    assert len(list(batches(numbered(100), 10, seed=0, epoch=0, augment=augment, first=7))) == 3
    assert calls == [10, 10, 10]


@pytest.mark.parametrize("first", [-1, 3])
def test_a_first_batch_outside_the_epoch_is_refused(first: int) -> None:
    with pytest.raises(UsageError, match=r"must be in 0 \.\. 2"):
        next(batches(numbered(20), 10, seed=0, epoch=0, first=first))


def test_a_batch_size_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="batch size must be >= 1, got 0"):
        next(batches(numbered(20), 0, seed=0, epoch=0))


def test_augmentation_belongs_to_seed_epoch_and_example() -> None:
    images = Images(torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8), torch.zeros(40).long(), 1)
    augment = AUGMENTS["pad-crop-flip"]

    def by_id(seed: int, epoch: int, batch_size: int) -> torch.Tensor:
        epoch_ = joined(list(batches(images, batch_size, seed=seed, epoch=epoch, augment=augment)))
        return epoch_.x[epoch_.ids.argsort()]

    assert torch.equal(by_id(0, 0, 7), by_id(0, 0, 40))
    assert not torch.equal(by_id(0, 0, 7), by_id(0, 1, 7))
    assert not torch.equal(by_id(0, 0, 7), by_id(1, 0, 7))


@pytest.mark.parametrize(("size", "count"), [(5, 5), (0.25, 25), (0.014, 1), (99, 99), (1, 1), (20.0, 20)])
def test_a_split_takes_every_example_to_one_side(size: float, count: int) -> None:
    images = numbered(100)
    train, validation = split(images, size, seed=0)
    assert len(validation) == count
    assert sorted(train.ids.tolist() + validation.ids.tolist()) == list(range(100))
    for side in (train, validation):
        assert torch.equal(side.x, images.x[side.ids])
        assert torch.equal(side.y, images.y[side.ids])
        assert side.ids.tolist() == sorted(side.ids.tolist())


def test_a_split_is_random_by_seed() -> None:
    images = numbered(300)
    sides = [tuple(split(images, 50, seed)[1].ids.tolist()) for seed in (0, 0, 1, 2)]
    assert sides[0] == sides[1]
    assert len(set(sides)) == 3
    for one, other in itertools.combinations(sides[1:], 2):
        assert 0 < len(set(one) & set(other)) < 25  # 8.3 expected by chance


@pytest.mark.parametrize("size", [0, -3, -0.5, 100, 101, 0.001, 0.999, 2.5, float("nan")])
def test_a_split_that_leaves_a_side_empty_is_refused(size: float) -> None:
    with pytest.raises(DataError, match="leaves at least one image on each side"):
        split(numbered(100), size, seed=0)
