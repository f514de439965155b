"""`Images` and `as_images`: what they keep, what they refuse, and in which words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

import atlas
from atlas.data import Images, as_images
from atlas.errors import DataError


def pixels(n: int = 6, shape: tuple[int, ...] = (3, 4, 5), seed: int = 0) -> Tensor:
    return torch.randint(
        0, 256, (n, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8
    )


def test_each_class_has_a_name_or_none_has() -> None:
    images = Images(pixels(), LABELS, 3, class_names=("a", "b", "c"))
    assert as_images(images).class_names == ("a", "b", "c")
    assert as_images(images, 4).class_names == ()
    with pytest.raises(DataError, match="class_names must be 3 names, got 2"):
        Images(pixels(), LABELS, 3, class_names=("a", "b"))


LABELS = torch.tensor([0, 2, 1, 2, 0, 1])


class Pairs(Dataset[tuple[object, object]]):
    def __init__(self, items: list[tuple[object, object]]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[object, object]:
        return self.items[index]


def test_uint8_stays_uint8_and_becomes_float_only_as_pixels() -> None:
    images = as_images((pixels(), LABELS))
    assert images.x.dtype == torch.uint8
    assert images.shape == (3, 4, 5)
    assert len(images) == 6
    assert images.num_classes == 3
    x = images.pixels(torch.tensor([4, 1]))
    assert x.dtype == torch.float32
    assert torch.equal(x, torch.stack([pixels()[4], pixels()[1]]).float() / 255)


def test_every_byte_becomes_the_nearest_float32() -> None:
    images = as_images((torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16), [0]))
    exact = (np.arange(256) / 255).astype(np.float32)
    assert np.array_equal(images.pixels().numpy().ravel(), exact)


def test_gray_gets_a_channel() -> None:
    assert as_images((pixels(shape=(4, 5)), LABELS)).shape == (1, 4, 5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble, ">f4", ">f8"])
def test_every_float_type_becomes_float32(dtype: str) -> None:
    x = np.linspace(0, 1, 6 * 60).reshape(6, 3, 4, 5)
    images = as_images((x.astype(dtype), LABELS))
    assert images.x.dtype == torch.float32
    assert np.array_equal(images.x.numpy(), x.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int32, ">i4", np.int64, np.uint64])
def test_every_integer_type_of_label_becomes_int64(dtype: str) -> None:
    images = as_images((pixels(), LABELS.numpy().astype(dtype)))
    assert torch.equal(images.y, LABELS)
    assert images.y.dtype == torch.int64


def test_arrays_that_are_read_only_or_turned_round_are_taken() -> None:
    x = pixels().numpy()
    x.setflags(write=False)
    assert np.array_equal(as_images((x[:, :, ::-1], LABELS)).x.numpy(), x[:, :, ::-1])


FLOATS = torch.rand(6, 3, 4, 5, generator=torch.Generator().manual_seed(1))


def spoiled(value: float) -> Tensor:
    x = FLOATS.clone()
    x[3, 1, 2, 2] = value
    return x


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (spoiled(1.5), LABELS, "to 1.5: divide by 255 if"),
        (spoiled(-0.1), LABELS, "from -0.1"),
        (spoiled(float("nan")), LABELS, "got values from nan to nan"),
        (spoiled(float("inf")), LABELS, "to inf"),
        (spoiled(1 + 2e-6), LABELS, "to 1.000002: "),
        (FLOATS * 255, LABELS, "divide by 255"),
        (pixels().long(), LABELS, "must be uint8 in 0 .. 255 or float32 in [0, 1], got int64 [6, 3, 4, 5]"),
        (pixels() > 9, LABELS, "got bool"),
        (pixels()[0, 0], LABELS, "must be [N, C, H, W]"),
        (pixels()[None], LABELS, "must be [N, C, H, W]"),
        (torch.zeros(6, 3, 0, 5), LABELS, "must be [N, C, H, W]"),
        (torch.zeros(6, 32, 32, 3), LABELS, "looks like [N, H, W, C]"),
        (pixels(0), LABELS[:0], "the data set is empty"),
        (pixels(), LABELS[:5], "got int64 [5] for 6 images"),
        (pixels(), LABELS - 1, "must be in 0 .. 1, got int64 [6] with labels from -1 to 1"),
        (pixels(), LABELS.float(), "must be integer labels"),
        (pixels(), LABELS > 1, "must be integer labels"),
        (pixels(), torch.eye(6, dtype=torch.int64), "argmax"),
        (pixels(), torch.tensor(1), "one label per image"),
        (pixels(), np.array(["cat"] * 6), "must hold numbers"),
        (np.array([None] * 6), LABELS, "must hold numbers"),
        ([[1, 2], [3]], LABELS, "must be a tensor or an array"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(x: object, y: object, words: str) -> None:
    with pytest.raises(DataError) as caught:
        as_images((x, y))
    assert words in str(caught.value)


def test_rounding_beyond_the_box_is_clipped() -> None:
    """White images after an antialiased resize, and what a sum of weights may give below black."""
    white = torch.nn.functional.interpolate(
        torch.ones(2, 3, 500, 500), (224, 224), mode="bilinear", antialias=True
    )
    assert white.max() > 1
    x = torch.cat([white, torch.full_like(white, -2e-7)])
    images = as_images((x, torch.tensor([0, 0, 1, 1])))
    assert torch.equal(images.x, x.clamp(0, 1))
    assert x.max() > 1, "the user's tensor is as it was"
    model = torch.nn.Sequential(torch.nn.AvgPool2d(224), torch.nn.Flatten(), torch.nn.Linear(3, 2))
    x_adv = atlas.attacks.FGSM()(model, x, images.y, atlas.Linf(0.1))
    assert atlas.Linf(0.1).contains(x_adv, x).all()


def test_a_label_beyond_the_given_classes_is_refused() -> None:
    with pytest.raises(DataError, match=r"must be in 0 \.\. 1, .*labels from 0 to 2"):
        as_images((pixels(), LABELS), num_classes=2)
    assert as_images((pixels(), LABELS), num_classes=7).num_classes == 7
    assert as_images(as_images((pixels(), LABELS)), num_classes=7).num_classes == 7


@pytest.mark.parametrize("wrong", ["mnist", 3, {"x": 1}, None])
def test_something_else_says_what_is_taken(wrong: object) -> None:
    with pytest.raises(DataError, match="must be Images, a pair"):
        as_images(wrong)


def test_images_pass_through_with_name_and_ids() -> None:
    images = Images(pixels(), LABELS, 3, "mine", torch.arange(6) + 10)
    again = as_images(images)
    assert (again.name, again.fingerprint()) == ("mine", images.fingerprint())


def test_a_set_prints_in_one_line() -> None:
    assert repr(Images(pixels(), LABELS, 3, "mine")) == "Images('mine': uint8 [6, 3, 4, 5], 3 classes)"


def test_ids_must_fit() -> None:
    with pytest.raises(DataError, match=r"ids must be int64 \[6\], got int64 \[5\]"):
        Images(pixels(), LABELS, 3, ids=torch.arange(5))


def rows() -> TensorDataset:
    return TensorDataset(pixels(), LABELS)


SOURCES: dict[str, Callable[[], object]] = {
    "dataset": rows,
    "a dataset of arrays and ints": lambda: Pairs([(x.numpy(), int(y)) for x, y in rows()]),
    "loader": lambda: DataLoader(rows(), batch_size=4),
    "loader that shuffles and drops": lambda: DataLoader(rows(), batch_size=4, shuffle=True, drop_last=True),
    "loader with workers": lambda: DataLoader(rows(), batch_size=2, num_workers=1),
    "loader without batches": lambda: DataLoader(
        [(pixels()[:3], LABELS[:3]), (pixels()[3:], LABELS[3:])], None
    ),
    "list of batches": lambda: [(pixels()[:2], LABELS[:2]), (pixels()[2:], LABELS[2:])],
}


@pytest.mark.parametrize("name", SOURCES)
def test_data_sets_and_loaders_are_read_whole_and_in_order(name: str) -> None:
    images = as_images(SOURCES[name]())
    assert torch.equal(images.x, pixels())
    assert torch.equal(images.y, LABELS)


def test_a_loaders_own_choice_of_examples_is_kept() -> None:
    loader = DataLoader(rows(), batch_size=2, sampler=SubsetRandomSampler([1, 3, 5]))
    images = as_images(loader)
    assert sorted(images.y.tolist()) == sorted(LABELS[[1, 3, 5]].tolist())


def test_an_iterable_data_set_is_read() -> None:
    class Stream(IterableDataset[tuple[Tensor, Tensor]]):
        def __iter__(self):
            return iter(rows())

    assert torch.equal(as_images(Stream()).x, pixels())
    assert torch.equal(as_images(DataLoader(Stream(), batch_size=4)).x, pixels())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Pairs([(object(), 0), (object(), 1)]), "do not stack to tensors"),
        (Pairs([(torch.zeros(1, 2, 2), 0), (torch.zeros(1, 3, 3), 1)]), "do not stack to tensors"),
        ([(torch.zeros(1, 1, 2, 2), [0]), (torch.zeros(1, 1, 3, 3), [1])], "differ in shape"),
        (DataLoader(TensorDataset(pixels()), batch_size=2), "must be a pair"),
        (TensorDataset(pixels(0), LABELS[:0]), "empty"),
        (pixels(), r"a batch must be a pair \(x, y\), got a Tensor"),
    ],
)
def test_a_loader_that_does_not_fit_is_refused_in_words(data: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        as_images(data)


def test_a_subset_keeps_identities() -> None:
    images = as_images((pixels(), LABELS))
    part = images.subset(torch.tensor([5, 0, 3])).subset([2, 0])
    assert part.ids.tolist() == [3, 5]
    assert torch.equal(part.x, pixels()[[3, 5]])
    assert part.y.tolist() == [2, 1]
    assert part.num_classes == 3
    assert images.subset(slice(4, None)).ids.tolist() == [4, 5]
    assert images.subset(LABELS == 2).ids.tolist() == [1, 3]
    with pytest.raises(DataError, match="empty"):
        images.subset([])


def test_the_fingerprint_sees_every_part_and_not_the_layout() -> None:
    base = Images(pixels(), LABELS, 3)
    turned = pixels().transpose(2, 3).contiguous().transpose(2, 3)
    assert base.fingerprint() == Images(turned, LABELS.clone(), 3, "another name").fingerprint()
    flipped = pixels()
    flipped[5, 2, 3, 4] ^= 1
    others = [
        Images(flipped, LABELS, 3),
        Images(pixels(), LABELS.flip(0), 3),
        Images(pixels(), LABELS, 4),
        Images(pixels(), LABELS, 3, ids=torch.arange(6) + 1),
        Images(pixels().view(6, 3, 5, 4), LABELS, 3),
        Images(pixels().float() / 255, LABELS, 3),
    ]
    assert len({base.fingerprint(), *(other.fingerprint() for other in others)}) == 7


@pytest.mark.parametrize("as_float", [False, True])
def test_stats_agree_with_numpy_in_float64(as_float: bool) -> None:
    x = pixels(50, (3, 8, 8)) // torch.tensor([1, 3, 7], dtype=torch.uint8).view(3, 1, 1)
    images = as_images((x.float() / 255 if as_float else x, torch.zeros(50, dtype=torch.int64)))
    exact = x.numpy().astype(np.float64) / 255
    mean, std = images.stats()
    assert np.allclose(mean, exact.mean((0, 2, 3)), rtol=1e-6, atol=0)
    assert np.allclose(std, exact.std((0, 2, 3)), rtol=1e-6, atol=0)
    assert all(type(value) is float for value in mean + std)
