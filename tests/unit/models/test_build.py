"""Names, shapes, normalisation, and the insides of the residual networks."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from atlas.errors import UsageError
from atlas.models import build, count_parameters
from atlas.models.networks import Block, PreActResNet
from atlas.models.normalize import Normalize


@pytest.mark.parametrize(
    ("name", "near"), [("cnnn", "cnn"), ("wrn28-8", "wrn-28-8"), ("resnet18", "preact-")]
)
def test_unknown_name_lists_the_choices_and_the_nearest(name: str, near: str) -> None:
    with pytest.raises(
        UsageError, match=f"{name}.*did you mean '{near}.*cnn-small.*wrn-D-K.*module.path:factory"
    ):
        build(name)


@pytest.mark.parametrize(
    ("name", "nearest"), [("wrn-27-8", "22 or 28"), ("wrn-4-1", "10 or 16"), ("wrn-16-0", "")]
)
def test_a_wrn_that_does_not_exist(name: str, nearest: str) -> None:
    with pytest.raises(UsageError, match=f"{name} does not exist.*{nearest}"):
        build(name)


@pytest.mark.parametrize("shape", [(28, 28), (1, 1, 28, 28), (0, 28, 28), ()])
def test_a_shape_that_is_not_channels_height_width(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"\(channels, height, width\)"):
        build("cnn", shape=shape)


def test_one_class_is_refused() -> None:
    with pytest.raises(UsageError, match="num_classes must be >= 2, got 1"):
        build("cnn", num_classes=1)


@pytest.mark.parametrize("classes", [2, 3, 100])
def test_any_number_of_classes(classes: int) -> None:
    assert build("cnn-small", classes)(torch.rand(1, 1, 28, 28)).shape == (1, classes)


def test_wrn_34_10_has_its_published_size() -> None:
    assert count_parameters(build("wrn-34-10", 10, (3, 32, 32))) == 46_160_474


def test_without_normalize_no_layer_is_added() -> None:
    model = build("cnn-small")
    assert not any(isinstance(module, Normalize) for module in model.modules())
    assert next(iter(model.state_dict())) == "0.weight"


def test_normalize_is_the_first_layer_and_is_not_trained() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    plain = build("cnn-small", shape=(3, 8, 8), seed=1)
    model = build("cnn-small", shape=(3, 8, 8), seed=1, normalize=(mean, std))
    x = torch.rand(2, 3, 8, 8)
    by_hand = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], dim=1)
    torch.testing.assert_close(model(x), plain(by_hand))
    assert count_parameters(model) == count_parameters(plain)
    assert {"normalize.mean", "normalize.std", "net.0.weight"} <= set(model.state_dict())


def test_a_normalisation_by_name_or_by_one_number_for_all_channels() -> None:
    x = torch.rand(2, 3, 8, 8)
    nets = [
        build("cnn-small", shape=(3, 8, 8), normalize=given)
        for given in ("-1..1", ((0.5,), (0.5,)), ((0.5,) * 3, (0.5,) * 3))
    ]
    assert all(torch.equal(net(x), nets[0](x)) for net in nets)
    assert all(net.state_dict()["normalize.mean"].shape == (3, 1, 1) for net in nets)
    with pytest.raises(UsageError, match=r"unknown normalization 'imagnet' .did you mean 'imagenet'"):
        build("cnn-small", shape=(3, 8, 8), normalize="imagnet")


@pytest.mark.parametrize(
    "normalize", [((0.1, 0.2), (1.0, 1.0)), ((0.1,), (1.0, 1.0)), ((0.1,), (0.0,)), ((), ())]
)
def test_a_normalisation_that_does_not_fit(normalize: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
    with pytest.raises(UsageError, match=r"one number per channel|a std for each channel"):
        build("cnn-small", normalize=normalize)


@pytest.mark.parametrize(("channels", "stride"), [(4, 1), (6, 1), (6, 2)])
def test_block_is_the_equation(channels: int, stride: int) -> None:
    """x + conv(relu(bn(conv(relu(bn(x)))))), and a 1x1 convolution of relu(bn(x)) where channels change."""
    torch.manual_seed(0)
    block = Block(4, channels, stride).eval()
    weights = dict(block.named_parameters()) | dict(block.named_buffers())
    for key, value in weights.items():
        if "act" in key and value.is_floating_point():
            value.data.uniform_(0.5, 1.5)
    x = torch.randn(2, 4, 6, 6)

    def act(z: torch.Tensor, name: str) -> torch.Tensor:
        mean, var, scale, shift = (
            weights[f"{name}.0.{key}"].view(-1, 1, 1)
            for key in ("running_mean", "running_var", "weight", "bias")
        )
        return ((z - mean) / (var + 1e-5).sqrt() * scale + shift).clamp(min=0)

    a = act(x, "act1")
    inner = act(F.conv2d(a, weights["conv1.weight"], stride=stride, padding=1), "act2")
    skip = x if channels == 4 else F.conv2d(a, weights["shortcut.weight"], stride=stride)
    torch.testing.assert_close(block(x), skip + F.conv2d(inner, weights["conv2.weight"], padding=1))


def test_residual_networks_halve_the_image_between_groups_only() -> None:
    model = build("wrn-16-2", 10, (3, 32, 32))
    assert isinstance(model, PreActResNet)
    sides, z = [], model.stem(torch.rand(1, 3, 32, 32))
    for block in model.blocks:
        z = block(z)
        sides.append((z.shape[1], z.shape[2]))
    assert sides == [(32, 32), (32, 32), (64, 16), (64, 16), (128, 8), (128, 8)]


def test_residual_networks_start_as_he_fan_out() -> None:
    model = build("wrn-16-2", 10, (3, 32, 32))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            spread = module.weight.std().item() * math.sqrt(fan_out / 2)
            assert spread == pytest.approx(1, abs=5 / math.sqrt(module.weight.numel()))
        if isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.weight))
            assert not module.bias.any()
