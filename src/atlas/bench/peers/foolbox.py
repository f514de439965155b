"""foolbox."""

from __future__ import annotations

from importlib import import_module

from torch import Tensor

from atlas.attacks import PGD, Untargeted
from atlas.bench.peers.job import Job


def pgd(job: Job, attack: PGD) -> Tensor:
    return _pgd(job, attack.steps, job.step_of(attack), 1)


def restarts(job: Job, attack: Untargeted) -> Tensor:
    return _pgd(job, attack.steps, job.restart_step, attack.restarts)


def _pgd(job: Job, steps: int, step: float, times: int) -> Tensor:
    library = import_module("foolbox")
    model = library.PyTorchModel(job.model, bounds=(0, 1), device=job.x.device)
    once = library.attacks.LinfPGD(steps=steps, abs_stepsize=step, random_start=True)
    attack = once.repeat(times) if times > 1 else once
    return job.each(lambda x, y: attack(model, x, y, epsilons=job.eps)[1])
