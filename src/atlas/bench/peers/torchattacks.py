"""torchattacks. Its own AutoAttack has stages of ten steps, so it is put together here from its parts."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor

from atlas.attacks import APGD, PGD, Attack, Square, TargetedAPGD, TargetedFAB, Untargeted
from atlas.bench.peers.job import Job


def pgd(job: Job, attack: PGD) -> Tensor:
    library = import_module("torchattacks")
    return job.each(library.PGD(job.model, job.eps, job.step_of(attack), attack.steps))


def restarts(job: Job, attack: Untargeted) -> Tensor:
    library = import_module("torchattacks")
    settings = (job.model, job.eps, job.restart_step, attack.steps)
    return job.each(library.MultiAttack([library.PGD(*settings) for _ in range(attack.restarts)]))


def stage(job: Job, attack: Attack) -> Tensor:
    return job.each(_stage(job, attack))


def autoattack(job: Job, *attacks: Attack) -> Tensor:
    """Each stage on what those before it have left of a batch."""
    return job.each(import_module("torchattacks").MultiAttack([_stage(job, attack) for attack in attacks]))


def _stage(job: Job, attack: Attack) -> Any:
    library = import_module("torchattacks")
    rest: dict[str, Any] = {"norm": "Linf", "eps": job.eps, "seed": job.seed}
    match attack:
        case APGD():
            return library.APGD(job.model, steps=attack.steps, loss=attack.loss, **rest)
        case TargetedAPGD():
            classes = job.targets_of(attack) + 1
            return library.APGDT(job.model, steps=attack.steps, n_classes=classes, **rest)
        case TargetedFAB():
            rest |= {"multi_targeted": True, "n_classes": job.targets_of(attack) + 1}
            return library.FAB(job.model, steps=attack.steps, **rest)
        case Square():
            # By default it stretches the shrinking of the squares to its budget, which AutoAttack does not.
            return library.Square(job.model, n_queries=attack.queries, resc_schedule=False, **rest)
    raise NotImplementedError(f"torchattacks has no {type(attack).__name__}")
