"""The disguises that `make test` does not try, each under one norm."""

from __future__ import annotations

import pytest
from torch import nn

import atlas
from atlas.attacks import ATTACKS, RayS
from atlas.data import Images, load
from atlas.models import build
from atlas.threat import Threat
from tests.disguises import CHOSEN, DISGUISES, HELD_OUT, Bare, Disguised, confidence_of, trained

N = 60
NORMS: tuple[Threat, Threat] = (atlas.Linf(0.1), atlas.L2(1.0))
ALL = DISGUISES | HELD_OUT
CASES = [(name, NORMS[1 if name in CHOSEN else k % 2]) for k, name in enumerate(ALL)]
"""Those that `make test` tries under L-inf come here under L2."""
INSIDER = {
    "Un-T": ATTACKS["un-t"](restarts=2, steps=50),
    "Shrink-T": ATTACKS["shrink-t"](targets=3, steps=40),
}


@pytest.fixture(scope="module")
def images() -> Images:
    return load("mnist-mini", train=False).subset(slice(N))


@pytest.fixture(scope="module")
def natural() -> nn.Module:
    return trained(build("cnn-small"), load("mnist-mini"), 3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "threat"), CASES, ids=lambda value: str(value))
def test_the_worst_case_is_near_the_truth_or_in_doubt(
    name: str, threat: Threat, natural: nn.Module, images: Images
) -> None:
    """The truth is bounded by attacks with the gradients of the network without its disguise."""
    model = Disguised(natural, ALL[name])
    report = atlas.evaluate(model, images, threat, progress=False)
    known = atlas.evaluate(Bare(model), images, threat, attacks=INSIDER, progress=False)
    gap = int(report.robust.sum()) - int((report.robust & known.robust).sum())
    assert report.flags or gap <= 0.1 * N, f"{report}\n{known}"


@pytest.mark.slow
def test_rays_sees_through_a_borrowed_confidence(natural: nn.Module, images: Images) -> None:
    """The limit of `quick` that docs/results/evaluation-checks.md names."""
    linear = trained(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), load("mnist-mini"), 5)
    model, threat = Disguised(natural, confidence_of(linear)), NORMS[0]
    quick = atlas.evaluate(model, images, threat, progress=False)
    rays = atlas.evaluate(model, images, threat, attacks={"RayS": RayS(queries=5000)}, progress=False)
    assert int(rays.robust.sum()) <= int(quick.robust.sum()) - 0.1 * N
