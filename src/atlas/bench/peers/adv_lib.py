"""adversarial-library."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from math import inf
from types import ModuleType

from torch import Tensor

from atlas.attacks import APGD, PGD, TargetedAPGD, TargetedFAB, Untargeted
from atlas.bench.peers.job import Job

NEEDLESS = ("torchvision", "visdom")
"""What the library imports and what its attacks here have no use for: a perceptual distance and plots."""


def _attacks() -> ModuleType:
    """Its attacks; what it imports without need and is not installed is stood in for meanwhile."""
    absent = [name for name in NEEDLESS if name not in sys.modules and find_spec(name) is None]
    for name in absent:
        stand_in = ModuleType(name)
        stand_in.models = None  # type: ignore[attr-defined]  # the one name that is taken from them
        sys.modules[name] = stand_in
    try:
        return import_module("adv_lib.attacks")
    finally:
        for name in absent:
            del sys.modules[name]


def pgd(job: Job, attack: PGD) -> Tensor:
    run, step = _attacks().pgd_linf, job.step_of(attack)
    return job.each(lambda x, y: run(job.model, x, y, job.eps, steps=attack.steps, absolute_step_size=step))


def restarts(job: Job, attack: Untargeted) -> Tensor:
    rest = {"restarts": attack.restarts, "loss_function": "dl", "absolute_step_size": job.restart_step}
    run = _attacks().pgd_linf
    return job.each(lambda x, y: run(job.model, x, y, job.eps, steps=attack.steps, **rest))


def apgd(job: Job, attack: APGD) -> Tensor:
    run, rest = _attacks().apgd, {"n_iter": attack.steps, "loss_function": attack.loss}
    return job.each(lambda x, y: run(job.model, x, y, job.eps, inf, **rest))


def apgd_targeted(job: Job, attack: TargetedAPGD) -> Tensor:
    run, rest = _attacks().apgd_targeted, {"n_iter": attack.steps, "num_targets": job.targets_of(attack)}
    return job.each(lambda x, y: run(job.model, x, y, job.eps, inf, **rest))


def fab_targeted(job: Job, attack: TargetedFAB) -> Tensor:
    rest = {"restarts": job.targets_of(attack), "targeted_restarts": True}
    run = _attacks().fab
    return job.each(lambda x, y: run(job.model, x, y, inf, attack.steps, job.eps, **rest))
