"""The loss along a line of a linear model, whose margin is linear in t."""

from __future__ import annotations

import math

import torch
from torch import nn

from atlas.threat import Linf
from atlas_paper.loss_curves import BOUNDARY, POINTS, T, directions, losses_along, select_image


def linear(weight: torch.Tensor) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(weight.shape[1], 2, bias=False))
    model[1].weight.data = torch.stack([weight[0], torch.zeros_like(weight[0])])
    return model


def test_a_linear_model_has_a_closed_form() -> None:
    w = torch.tensor([[1.0, -2.0, 0.5, 3.0]])
    model, x, y = linear(w), torch.full((1, 1, 2, 2), 0.5), torch.tensor([0])
    threat = Linf(0.1)
    d = directions(model, x, y)
    assert torch.equal(d.flatten(), -w.sign().flatten()), "down the right class's logit"
    losses = losses_along([model], x, y, threat, [d])
    # The margin is f_1 - f_0 = -w.x, and a step of t eps along d raises it by t eps |w|_1.
    margin = -(w * x.flatten()).sum() + T * 0.1 * w.abs().sum()
    wanted = torch.log1p(torch.exp(margin))
    torch.testing.assert_close(losses[0, 0], wanted)
    assert (T[0], T[POINTS // 2], T[-1]) == (-1, 0, 1)
    assert math.isclose(BOUNDARY, -math.log(0.5))
    assert torch.equal(losses[0, 0] > BOUNDARY, margin > 0)


def test_points_stay_in_the_pixel_box() -> None:
    w = torch.tensor([[1.0, 1.0, 1.0, 1.0]])
    model, x, y = linear(w), torch.zeros(1, 1, 2, 2), torch.tensor([0])
    losses = losses_along([model], x, y, Linf(0.3), [directions(model, x, y)])
    # Down is out of the box: half of the line stands still.
    assert torch.all(losses[0, 0, POINTS // 2 :] == losses[0, 0, POINTS // 2])


def of(*images: tuple[int, int, int]) -> torch.Tensor:
    """Lines of ten points with these numbers of adversarial points: before, local, last."""
    losses = torch.zeros(3, len(images), 10)
    for k, counts in enumerate(images):
        for model, count in enumerate(counts):
            losses[model, k, :count] = 1.0
    return losses


def test_the_image_to_show() -> None:
    assert select_image(of((5, 5, 5), (5, 0, 0), (5, 2, 0), (9, 1, 0))) == 2
    assert select_image(of((5, 5, 5), (5, 0, 0))) == 1, "none in between"
    assert select_image(of((2, 5, 1), (5, 5, 1))) == 1, "none like that: the largest fall"
