"""A default evaluation sees through a disguised network, or says that it is in doubt."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import atlas
from atlas.attacks import PGD, Transfer
from atlas.data import Images, load
from atlas.models import build
from tests.disguises import DISGUISES, Disguised

THREAT = atlas.Linf(0.1)
N = 60
CHOSEN = (
    *("sine 500 x 3", "sine 1000 x 5", "sine 2000 x 10", "sine 300 x 3 in phase", "zigzag 200 x 8"),
    *("rounded to 8", "rounded to 4, leak 0.01", "stairs 16, sharp 20", "blackened below 0.25"),
    *("contrast 30", "masked 50% to halves", "half rounded", "borrowed gradient 0.1"),
)


@pytest.fixture(scope="module")
def images() -> Images:
    return load("mnist-mini", train=False).subset(slice(N))


@pytest.fixture(scope="module")
def natural() -> nn.Module:
    data, model = load("mnist-mini"), build("cnn-small")
    x, y = data.pixels(slice(2000)), data.y[:2000]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for some in torch.split(order, 100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
    return model.eval()


@pytest.mark.parametrize("name", CHOSEN)
def test_the_worst_case_is_near_the_truth_or_in_doubt(name: str, natural: nn.Module, images: Images) -> None:
    """The truth is bounded by adversaries made on the network without its disguise."""
    model = Disguised(natural, DISGUISES[name])
    report = atlas.evaluate(model, images, THREAT, progress=False)
    bare = Transfer((natural,), PGD(steps=40, objective="margin", restarts=2))
    known = atlas.evaluate(model, images, THREAT, attacks={"bare": bare}, progress=False)
    gap = int(report.robust.sum()) - int((report.robust & known.robust).sum())
    assert report.flags or gap <= 0.1 * N, f"{report}\n{known}"


@pytest.mark.parametrize("threat", [atlas.Linf(0.1), atlas.L2(1.5)], ids=str)
def test_the_network_itself_is_valid(threat: atlas.threat.Threat, natural: nn.Module, images: Images) -> None:
    report = atlas.evaluate(natural, images, threat, progress=False)
    assert report.valid
    assert not {flag.name for flag in report.flags} & {"misleading", "far-ahead", "not-uphill"}
