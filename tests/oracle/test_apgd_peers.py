"""APGD and targeted APGD beside other implementations, at the same budget on the same models and images."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atlas import data
from atlas.attacks import APGD, TargetedAPGD, engine, frozen
from atlas.attacks.apgd import AutoPGD
from atlas.rng import Rng
from atlas.threat import L2, Linf, Threat
from tests.oracle.test_fab_square_peers import Smooth, trained

__all__ = ["trained"]
NORMS = {Linf: "Linf", L2: "L2"}
ORDERS = {Linf: math.inf, L2: 2}
IMAGES = 500


def original(attack: AutoPGD, model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    peer = pytest.importorskip("pyautoattack.autopgd_base", reason="the peer pyautoattack is not installed")
    settings: dict[str, Any] = {"n_iter": attack.steps, "n_restarts": attack.restarts, "device": "cpu"}
    settings |= {"norm": NORMS[type(threat)], "eps": threat.eps}
    if isinstance(attack, APGD):
        theirs = peer.APGDAttack(model, loss=attack.loss, **settings)
    else:
        targets = min(9, model(x[:1]).shape[1] - 1)
        theirs = peer.APGDAttack_targeted(model, n_target_classes=targets, **settings)
    return theirs.perturb(x, y)  # type: ignore[no-any-return]


def torchattacks(attack: AutoPGD, model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    peer = pytest.importorskip("torchattacks", reason="the peer torchattacks is not installed")
    settings: dict[str, Any] = {"steps": attack.steps, "n_restarts": attack.restarts}
    settings |= {"norm": NORMS[type(threat)], "eps": threat.eps}
    if isinstance(attack, APGD):
        return peer.APGD(model, loss=attack.loss, **settings)(x, y)  # type: ignore[no-any-return]
    return peer.APGDT(model, n_classes=model(x[:1]).shape[1], **settings)(x, y)  # type: ignore[no-any-return]


def adversarial_library(attack: AutoPGD, model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    peer = _adversarial_library()
    settings: dict[str, Any] = {"n_iter": attack.steps, "n_restarts": attack.restarts}
    settings |= {"norm": ORDERS[type(threat)], "eps": threat.eps}
    torch.manual_seed(0)
    if isinstance(attack, APGD):
        return peer.apgd(model, x, y, loss_function=attack.loss, **settings)  # type: ignore[no-any-return]
    return peer.apgd_targeted(model, x, y, **settings)  # type: ignore[no-any-return]


def _adversarial_library() -> ModuleType:
    """Its attacks; on import it wants two modules, for parts that are not used here."""
    stand_ins = {name: ModuleType(name) for name in ("torchvision", "torchvision.models", "visdom")}
    stand_ins["torchvision"].models = stand_ins["torchvision.models"]  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        for name, module in stand_ins.items():
            patch.setitem(sys.modules, name, module)
        reason = "the peer adversarial-library (adv-lib) is not installed"
        return pytest.importorskip("adv_lib.attacks", reason=reason)  # type: ignore[no-any-return]


Peer = Callable[[AutoPGD, nn.Module, Tensor, Tensor, Threat], Tensor]
PEERS: list[Peer] = [original, torchattacks, adversarial_library]
each_peer = pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.__name__)


@cache
def our_share(attack: AutoPGD, model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> float:
    """Of the images that stand; asked for once for all peers."""
    outcome = engine.run(attack, model, x, y, threat, Rng.batch(len(x)), batch_size=128)
    return outcome.robust.double().mean().item()


def standing(
    attack: AutoPGD, peer: Peer, model: nn.Module, x: Tensor, y: Tensor, threat: Threat
) -> tuple[float, float]:
    """The share of images that stands under our attack and under the peer's."""
    with frozen(model):
        right = model(x).argmax(1) == y
        x_adv = peer(attack, model, x[right], y[right], threat).detach()
        assert threat.contains(x_adv, x[right], 1e-5).all()
        theirs = int((model(x_adv).argmax(1) == y[right]).sum())
    return our_share(attack, model, x, y, threat), theirs / len(x)


@cache
def smooth() -> tuple[nn.Module, Tensor, Tensor]:
    model = Smooth()
    x = torch.rand(300, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    return model, x, model(x).argmax(1)


@cache
def digits() -> tuple[Tensor, Tensor]:
    test = data.load("mnist-mini", train=False)
    return test.pixels(slice(IMAGES)), test.y[:IMAGES]


@each_peer
@pytest.mark.parametrize("threat", [Linf(0.02), L2(0.2)], ids=str)
@pytest.mark.parametrize("attack", [APGD(steps=50), APGD("dlr", steps=50), TargetedAPGD(steps=30)], ids=str)
def test_as_strong_as_the_peer(attack: AutoPGD, peer: Peer, threat: Threat) -> None:
    ours, theirs = standing(attack, peer, *smooth(), threat)
    assert 0.1 < theirs < 0.9
    assert ours <= theirs + 0.005


@pytest.mark.slow
@each_peer
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("attack", [APGD(), TargetedAPGD()], ids=str)
def test_within_half_a_point_of_the_peer(attack: AutoPGD, norm: str, peer: Peer, trained: Any) -> None:
    model, threats = trained
    ours, theirs = standing(attack, peer, model, *digits(), threats[norm])
    print(f"{attack} {threats[norm]} {peer.__name__}: ours {ours:.3f}, theirs {theirs:.3f}")
    assert 0.05 < theirs < 0.95
    assert ours <= theirs + 0.005
