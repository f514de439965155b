"""The Adversarial Robustness Toolbox. It makes batches itself, of numpy arrays."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from atlas.attacks import APGD, PGD, Square, Untargeted
from atlas.bench.peers.job import Job


def pgd(job: Job, attack: PGD) -> Tensor:
    return _pgd(job, attack.steps, job.step_of(attack), 1)


def restarts(job: Job, attack: Untargeted) -> Tensor:
    return _pgd(job, attack.steps, job.restart_step, attack.restarts)


def _pgd(job: Job, steps: int, step: float, times: int) -> Tensor:
    module = "projected_gradient_descent.projected_gradient_descent_pytorch"
    rest = {"max_iter": steps, "eps_step": step, "num_random_init": times}
    return _run(job, f"{module}.ProjectedGradientDescentPyTorch", **rest)


def apgd(job: Job, attack: APGD) -> Tensor:
    name = "auto_projected_gradient_descent.AutoProjectedGradientDescent"
    rest = {"max_iter": attack.steps, "eps_step": 2 * job.eps, "nb_random_init": 1}
    return _run(job, name, loss_type="cross_entropy", **rest)


def square(job: Job, attack: Square) -> Tensor:
    return _run(job, "square_attack.SquareAttack", max_iter=attack.queries)


def _run(job: Job, name: str, **rest: Any) -> Tensor:
    classifier = import_module("art.estimators.classification").PyTorchClassifier(
        job.model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(job.x.shape[1:]),
        nb_classes=job.images.num_classes,
        clip_values=(0.0, 1.0),
        device_type="gpu" if job.x.is_cuda else "cpu",
    )
    module, _, kind = name.rpartition(".")
    make = getattr(import_module(f"art.attacks.evasion.{module}"), kind)
    attack = make(classifier, norm=np.inf, eps=job.eps, batch_size=job.batch_size, verbose=False, **rest)
    x_adv = attack.generate(job.x.cpu().numpy(), job.y.cpu().numpy())
    return torch.from_numpy(x_adv).to(job.x)
