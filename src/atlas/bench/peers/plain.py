"""PGD as one writes it in a notebook."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from atlas.attacks import PGD
from atlas.bench.peers.job import Job


def pgd(job: Job, attack: PGD) -> Tensor:
    eps, step = job.eps, job.step_of(attack)

    def climb(x: Tensor, y: Tensor) -> Tensor:
        x_adv = (x + torch.empty_like(x).uniform_(-eps, eps)).clamp(0, 1)
        for _ in range(attack.steps):
            x_adv.requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(job.model(x_adv), y), x_adv)
            x_adv = x_adv.detach() + step * gradient.sign()
            x_adv = torch.clamp(x_adv, x - eps, x + eps).clamp(0, 1)
        return x_adv

    return job.each(climb)
