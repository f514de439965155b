"""A default evaluation sees through a disguised network, or says that it is in doubt."""

from __future__ import annotations

import pytest
from torch import nn

import atlas
from atlas.attacks import PGD, Transfer
from atlas.data import Images, load
from atlas.evaluation.probes import probe
from atlas.models import build
from tests.disguises import CHOSEN, DISGUISES, Disguised, trained

THREAT = atlas.Linf(0.1)
N = 60


@pytest.fixture(scope="module")
def images() -> Images:
    return load("mnist-mini", train=False).subset(slice(N))


@pytest.fixture(scope="module")
def natural() -> nn.Module:
    return trained(build("cnn-small"), load("mnist-mini").subset(slice(2000)), 2)


@pytest.mark.parametrize("name", CHOSEN)
def test_the_worst_case_is_near_the_truth_or_in_doubt(name: str, natural: nn.Module, images: Images) -> None:
    """The truth is bounded by adversaries made on the network without its disguise."""
    model = Disguised(natural, DISGUISES[name])
    report = atlas.evaluate(model, images, THREAT, progress=False)
    bare = Transfer((natural,), PGD(steps=40, objective="margin", restarts=2))
    known = atlas.evaluate(model, images, THREAT, attacks={"bare": bare}, progress=False)
    gap = int(report.robust.sum()) - int((report.robust & known.robust).sum())
    assert report.flags or gap <= 0.1 * N, f"{report}\n{known}"


def test_waves_that_are_smooth_over_a_tenth_of_eps_mislead(natural: nn.Module, images: Images) -> None:
    model = Disguised(natural, DISGUISES["sine 2000 x 10"])
    flags = probe(model, images.pixels(slice(None)), images.y, atlas.Linf(2 / 255))
    assert "misleading" in {flag.name for flag in flags}


@pytest.mark.parametrize("threat", [atlas.Linf(0.1), atlas.L2(1.5)], ids=str)
def test_the_network_itself_is_valid(threat: atlas.threat.Threat, natural: nn.Module, images: Images) -> None:
    report = atlas.evaluate(natural, images, threat, progress=False)
    assert report.valid
    assert not {flag.name for flag in report.flags} & {"misleading", "far-ahead", "not-uphill"}
