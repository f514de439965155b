"""Pad-crop-flip on whole batches, against a slow version that goes image by image."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from atlas.data import AUGMENTS, PadCropFlip
from atlas.errors import UsageError
from atlas.rng import Rng

RNG = Rng.lanes(7, torch.arange(4000))


def coordinates(n: int, height: int = 6, width: int = 5) -> Tensor:
    """Images whose two channels hold 1 + row and 1 + column of each pixel: a place can be read off."""
    rows = torch.arange(1, height + 1)[:, None].expand(height, width)
    columns = torch.arange(1, width + 1)[None].expand(height, width)
    return torch.stack([rows, columns]).to(torch.uint8).expand(n, 2, height, width).contiguous()


def choices(image: Tensor, pad: int) -> list[tuple[int, int, bool]]:
    """Every (top, left, mirrored) that makes `image` out of one image of `coordinates`."""
    original = F.pad(coordinates(1, *image.shape[1:])[0], (pad,) * 4)
    height, width = image.shape[1:]
    found = []
    for top in range(2 * pad + 1):
        for left in range(2 * pad + 1):
            crop = original[:, top : top + height, left : left + width]
            for mirrored in (False, True):
                if torch.equal(image, crop.flip(2) if mirrored else crop):
                    found.append((top, left, mirrored))
    return found


def test_every_image_is_one_crop_of_the_padded_one_mirrored_or_not() -> None:
    out = PadCropFlip(pad=2)(coordinates(200), RNG[:200])
    assert all(len(choices(image, 2)) == 1 for image in out)


def test_all_places_and_both_directions_come_equally_often() -> None:
    """50 outcomes in 4000 draws: chi-squared with 49 degrees of freedom."""
    out = PadCropFlip(pad=2)(coordinates(4000), RNG)
    counts: dict[tuple[int, int, bool], int] = {}
    for image in out:
        outcome = choices(image, 2)[0]
        counts[outcome] = counts.get(outcome, 0) + 1
    assert len(counts) == 50
    assert sum((count - 80) ** 2 / 80 for count in counts.values()) < 85.4  # p = 0.001


def test_without_flip_and_pad_nothing_changes() -> None:
    x = coordinates(50)
    assert torch.equal(PadCropFlip(pad=0, flip=False)(x, RNG[:50]), x)
    assert all(not choices(image, 1)[0][2] for image in PadCropFlip(pad=1, flip=False)(x, RNG[:50]))


def test_the_outcome_does_not_depend_on_the_batch() -> None:
    x = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
    whole = PadCropFlip()(x, RNG[:64])
    for lanes in (torch.tensor([5]), torch.tensor([63, 0, 17]), torch.arange(63, -1, -1)):
        assert torch.equal(PadCropFlip()(x[lanes], RNG[lanes]), whole[lanes])


def test_float_and_bytes_agree_and_the_input_is_left_alone() -> None:
    x = torch.randint(0, 256, (32, 3, 9, 7), dtype=torch.uint8)
    before = x.clone()
    out = PadCropFlip()(x, RNG[:32])
    assert torch.equal(x, before)
    assert out.dtype == torch.uint8
    assert torch.equal(PadCropFlip()(x.float() / 255, RNG[:32]), out.float() / 255)


def test_a_negative_pad_is_refused() -> None:
    with pytest.raises(UsageError, match="pad must be >= 0 pixels, got -1"):
        PadCropFlip(pad=-1)


def test_the_registry() -> None:
    assert {"none": None, "pad-crop-flip": PadCropFlip(pad=4, flip=True)} == AUGMENTS
