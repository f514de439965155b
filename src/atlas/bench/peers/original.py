"""pyautoattack: the original AutoAttack, in a package."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor

from atlas.attacks import APGD, Attack, Square, TargetedAPGD, TargetedFAB
from atlas.bench.peers.job import Job


def stage(job: Job, attack: Attack) -> Tensor:
    return job.each(_stage(job, attack).perturb)


def autoattack(job: Job, *attacks: Attack) -> Tensor:
    """The standard version, with its stages replaced by ones of the same settings and our budget."""
    make = import_module("pyautoattack").AutoAttack
    whole = make(job.model, norm="Linf", eps=job.eps, seed=job.seed, device=job.x.device)
    whole.apgd, whole.apgd_targeted, whole.fab, whole.square = (_stage(job, attack) for attack in attacks)
    x_adv: Tensor = whole.run_standard_evaluation(job.x, job.y, batch_size=job.batch_size)[0]
    return x_adv


def _stage(job: Job, attack: Attack) -> Any:
    apgd = import_module("pyautoattack.autopgd_base")
    rest: dict[str, Any] = {"norm": "Linf", "eps": job.eps, "seed": job.seed, "device": job.x.device}
    match attack:
        case APGD():
            return apgd.APGDAttack(job.model, n_iter=attack.steps, loss=attack.loss, **rest)
        case TargetedAPGD():
            rest |= {"n_target_classes": job.targets_of(attack)}
            return apgd.APGDAttack_targeted(job.model, n_iter=attack.steps, **rest)
        case TargetedFAB():
            rest |= {"targeted": True, "n_target_classes": job.targets_of(attack)}
            return import_module("pyautoattack.fab_pt").FABAttack_PT(job.model, n_iter=attack.steps, **rest)
        case Square():
            rest |= {"n_queries": attack.queries, "resc_schedule": False}
            return import_module("pyautoattack.square").SquareAttack(job.model, **rest)
    raise NotImplementedError(f"pyautoattack has no {type(attack).__name__}")
